"""What the learner process and its client say to one another: bodies of HTTP requests and answers, as msgpack."""

from msgspec import Struct

from moonmill.types import Rollout


class StepRequest(Struct, frozen=True):
    """Body of `POST /step`: do learner step number `step`, the one after those done, with these rollouts."""

    step: int
    rollouts: tuple[Rollout, ...]
    probe: tuple[int, ...] = ()
    """Tokens of a prompt to be answered with the weights of a new version; empty for none."""


class StepAnswer(Struct, frozen=True):
    """What a step came to."""

    step: int
    version: int
    """The policy's, after the step."""
    weights: str | None
    """The folder with the weights of `version`; None where the step made no version."""
    metrics: dict[str, float]
    """Finite numbers only; what a step does not know is left out."""
    probe: float | None = None
    """Log-probability of the likeliest token after the probe, at temperature 1; None where there is no new version."""
    notice: str = ""
    """What the user is to be told of the step."""


class FallBackRequest(Struct, frozen=True):
    """Body of `POST /fall_back`: count the state there is as step `step`, and as `version`; answered as a step."""

    step: int
    version: int
    lr_scale: float
    """What the learning rates are multiplied by from here on."""
    probe: tuple[int, ...] = ()
    """As of a `StepRequest`."""


class ProbeRequest(Struct, frozen=True):
    """Body of `POST /probe`: answer this prompt with the weights there are."""

    tokens: tuple[int, ...]


class ProbeAnswer(Struct, frozen=True):
    """Answer to `POST /probe`."""

    logprob: float
    """Of the likeliest token after the prompt, at temperature 1."""


class RestoreRequest(Struct, frozen=True):
    """Body of `POST /restore`."""

    path: str


class CheckpointRequest(Struct, frozen=True):
    """Body of `POST /checkpoint`."""

    back_to: int | None = None
    """Checkpoints of later steps than this are kept, and the newest before them; None keeps as many as usual."""


class CheckpointAnswer(Struct, frozen=True):
    """Answer to `POST /checkpoint`."""

    path: str


class LearnerState(Struct, frozen=True):
    """Answer to `GET /state` and `POST /restore`: where the learner stands."""

    step: int
    """Learner steps done, value warm-up included."""
    version: int
    """Policy updates done."""


class ErrorAnswer(Struct, frozen=True):
    """Body of every answer that is not 200, as JSON."""

    error: str
    kind: str
    """The error's class: one of `moonmill.errors`, or `InternalError`."""
