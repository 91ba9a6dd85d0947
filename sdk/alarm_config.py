"""The section `alarms` of a run's configuration. See `moonmill.config`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from moonmill.ranges import Count

AlarmName = Literal[
    "masked_share",
    "ess",
    "ratio_std",
    "entropy_low",
    "entropy_high",
    "turns_low",
    "turns_high",
    "tool_errors",
    "truncated",
    "reward",
    "explained_variance",
    "same_rewards",
]


class AlarmsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What to do about signs of a collapse; [the signs and their limits](runs.md#alarms)."""

    on_alarm: Literal["warn", "stop", "fall_back"] = "warn"
    """`warn` tells of it. `stop` ends the run, with a checkpoint. `fall_back` goes back to the newest checkpoint of at
    least 20 learner steps before the alarm, or to the one from before the first policy update, and on from there with
    smaller learning rates. For that, the checkpoints of the last 20 steps are kept, and the newest before them."""
    off: tuple[AlarmName, ...] = ()
    """Alarms that are not given: `[entropy_low, turns_high]`."""
    lr_factor: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """By how much the learning rates of policy and critic are multiplied at each fall-back."""
    max_fall_backs: Count = 3
    """The run ends at an alarm after so many of them."""
