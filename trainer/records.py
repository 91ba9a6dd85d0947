"""The lines of `steps.jsonl` and `events.jsonl`.

`steps.jsonl` is the commit log. A line stands for a learner step that is done: its rollouts are consumed, its drops are
final, and only afterwards are its weights published. So no token was ever sampled under a version that is not in the
log, and a learner that comes back from an older checkpoint does the missing steps again, with the same rollouts.
"""

from typing import Any

from msgspec import Struct

from moonmill.envs.sandbox_host import SandboxFigures
from moonmill.trainer.buffer import Drop
from moonmill.trainer.meter import Spans, Waits


class StepRecord(Struct, frozen=True, omit_defaults=True):
    """One committed learner step; a line without a step has only drops, those at the end of a run."""

    step: int | None
    version: int
    consumed: tuple[str, ...] = ()
    """Ids of the rollouts trained on."""
    dropped: tuple[Drop, ...] = ()
    """Rollouts given up since the line before."""
    staleness: tuple[int, ...] = ()
    """Of each consumed rollout."""
    reward: float | None = None
    """Mean over the consumed rollouts."""
    turns: float = 0.0
    truncated: float = 0.0
    """Share of the consumed rollouts that a limit ended."""
    tool_fault_share: float = 0.0
    """Share of the consumed rollouts in which a tool call failed."""
    same_rewards: float | None = None
    """Share of the consumed groups whose rewards are all the same, so that they teach nothing; null without groups."""
    action_tokens: int = 0
    tokens: int = 0
    spans: Spans = Spans(0.0, 0.0, 0.0, 0.0)
    """What went on since the line before."""
    waits: Waits = Waits()
    """Who waited for whom since the line before."""
    in_flight: tuple[int, ...] = ()
    """Completions that each engine was at work on when the step was done."""
    sandboxes: SandboxFigures = SandboxFigures()
    """Those of the episodes, evaluations included: where there are any."""
    env_metrics: dict[str, float] = {}
    """Mean of each of the environment's metrics over the consumed rollouts that have it."""
    metrics: dict[str, float] = {}
    """The learner's own: losses, ratios, masked share, explained variance."""
    rolled_back_to: int | None = None
    """Of a step that only goes back, after an alarm: its version has the weights that there were after this step. What
    the steps between have consumed stays consumed."""
    lr_scale: float = 1.0
    """What learning rates are multiplied by from such a step on."""


class Event(Struct, frozen=True, omit_defaults=True):
    """Anything else worth remembering. `time` is seconds since the epoch."""

    time: float
    kind: str
    data: dict[str, Any] = {}
