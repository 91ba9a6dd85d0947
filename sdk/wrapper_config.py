"""What `env.wrappers` of a config may list, one struct a kind; the classes are those of `moonmill.envs.wrappers`."""

from typing import Annotated

from msgspec import Meta, Struct

from moonmill.ranges import Fraction, PositiveFloat, PositiveInt


class _Wrapper(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class LimitsConfig(_Wrapper, frozen=True, tag="limits"):
    """Other limits than the environment's own. One that is left out stays."""

    turns: PositiveInt | None = None
    """Assistant turns, in place of `max_turns`."""
    tokens: PositiveInt | None = None
    """Tokens of the whole context, in place of `max_tokens`."""
    seconds: PositiveFloat | None = None
    """Seconds, in place of `max_seconds`."""


class CutObservationConfig(_Wrapper, frozen=True, tag="cut_observation"):
    """Cuts what the environment answers a turn with; the prompt stays whole. The metric `observation_characters_cut`
    tells how much the model did not see."""

    characters: PositiveInt
    """Of a longer message the model is shown its beginning and its end, together so long."""


class ScaleRewardConfig(_Wrapper, frozen=True, tag="scale_reward"):
    """Multiplies each reward, of the episode or a turn."""

    factor: PositiveFloat
    """What it is multiplied by."""


class ClipRewardConfig(_Wrapper, frozen=True, tag="clip_reward"):
    """Clips each reward, of the episode before its weight or of a turn, as `reward_bounds` holds for each."""

    low: float
    """A lower reward becomes this."""
    high: float
    """A higher reward becomes this."""


class RecordConfig(_Wrapper, frozen=True, tag="record"):
    """Writes every rollout that was scored as a line of JSON, as in a run's `rollouts.jsonl`."""

    path: str
    """The file, from the working directory. Lines are appended; an episode played again after a crash has two."""


class CurriculumConfig(_Wrapper, frozen=True, tag="curriculum"):
    """Gives tasks of one level in the split `train`, until they are solved often enough, then those of the next."""

    path: str
    """A file of the run's own, from the working directory: what was given and how it went. On `--resume` each task has
    the level from it that it had, and the count goes on. A new run takes a new file."""
    levels: Annotated[tuple[str, ...], Meta(min_length=1)]
    """The levels, as the environment's tasks name them, the first one first."""
    threshold: Fraction = 0.8
    """The next level begins when so large a share of the newest `window` rollouts of the level are successes."""
    window: PositiveInt = 64
    """How many there must be, and are looked at. Rollouts without a reward are not counted."""
    success: float = 1.0
    """A rollout whose reward, before wrappers changed it, is at least this is a success."""


WrapperConfig = (
    LimitsConfig | CutObservationConfig | ScaleRewardConfig | ClipRewardConfig | RecordConfig | CurriculumConfig
)
