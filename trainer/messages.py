"""What controller and learner say to each other, as msgpack over HTTP."""

from msgspec import Struct

from moonmill.types import Rollout


class State(Struct, frozen=True):
    """Where the learner stands."""

    step: int
    version: int


class StepRequest(Struct, frozen=True):
    """Do step number `step` with these rollouts."""

    step: int
    rollouts: tuple[Rollout, ...]


class StepAnswer(Struct, frozen=True):
    """A step is done. `weights` is the folder of the new version's weights, None where the step made no version."""

    step: int
    version: int
    weights: str | None
    metrics: dict[str, float]


class Path(Struct, frozen=True):
    """A folder: of a checkpoint that was written, or is to be restored."""

    path: str


class Failure(Struct, frozen=True):
    """Why a request could not be done; `kind` is the error's class."""

    error: str
    kind: str
