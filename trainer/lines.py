"""A learner step as a record for the logs, and as a line that is shown while a run goes on."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from moonmill.config import Config
from moonmill.reporting import StepLine
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.buffer import Batch
from moonmill.trainer.messages import StepAnswer
from moonmill.trainer.records import StepRecord
from moonmill.trainer.rewards import alike
from moonmill.trainer.summary import means
from moonmill.trainer.warm_up import most_steps
from moonmill.types import Rollout, Status

_SWITCHED_ON = {
    "kl_reference": "KL to the first",
    "entropy_bonus": "entropy bonus",
    "staleness_scale": "scaled by",
    "at_bound_share": "weights at bound",
}
"""Metrics that are there only where the algorithm has what they tell of, in words."""


def step_record(batch: Batch, answer: StepAnswer) -> StepRecord:
    """What a step's batch and the learner's answer say of it; the rest is the controller's."""
    rollouts = batch.rollouts
    return StepRecord(
        step=answer.step,
        version=answer.version,
        consumed=tuple(r.id for r in rollouts),
        staleness=batch.staleness,
        reward=fmean(r.reward for r in rollouts if r.reward is not None),
        turns=fmean(r.turns for r in rollouts),
        truncated=fmean(r.status is Status.TRUNCATED for r in rollouts),
        tool_fault_share=fmean(bool(r.tool_faults) for r in rollouts),
        same_rewards=_same_rewards(rollouts),
        action_tokens=sum(r.action_tokens for r in rollouts),
        tokens=sum(r.tokens for r in rollouts),
        env_metrics=means(r.metrics for r in rollouts),
        metrics=answer.metrics,
    )


def _same_rewards(rollouts: Sequence[Rollout]) -> float | None:
    groups = defaultdict[str, set[float | None]](set)
    for rollout in rollouts:
        if rollout.group is not None:
            groups[rollout.group].add(rollout.reward)
    return fmean(len(rewards) == 1 for rewards in groups.values()) if groups else None


class Length(Struct, frozen=True):
    """How long a run is."""

    updates: int
    """Policy updates; 0 where the critic is all that is trained."""
    alone: int
    """Learner steps before them that train the critic alone,"""
    at_most: bool = False
    """or fewer."""

    @classmethod
    def of(cls, config: Config, *, critic_only: bool = False) -> "Length":
        """That of a run; `critic_only` makes no policy update."""
        critic = resolve(config.algorithm, config.learner.batch_rollouts).critic
        updates = 0 if critic_only else config.train.steps
        return cls(updates, most_steps(critic), at_most=critic is not None and critic.pretrain is not None)

    def is_done(self, version: int, *, critic_ready: bool) -> bool:
        """Whether nothing is left to do; `critic_ready` where the critic has been trained alone for long enough."""
        return version >= self.updates and (self.updates > 0 or critic_ready)

    def steps(self, record: StepRecord) -> int:
        """Learner steps of the whole run, as far as that is known after a step."""
        if not record.version:
            return self.updates + self.alone
        # By now it is known how many made no version.
        return self.updates + (record.step or 0) - record.version


def step_line(record: StepRecord, batch: Batch, length: Length, success: float) -> StepLine:
    """A committed step as a line.

    Args:
        record: the step.
        batch: what it trained on.
        length: of the run.
        success: a reward of at least this is a success.
    """
    metrics, seconds, rollouts = record.metrics, record.spans.wall, batch.rollouts
    are_alike = alike((r.group, r.reward) for r in rollouts) == len(rollouts)
    failed = sum(d.reason.startswith("failed") or d.reason == "unscored" for d in record.dropped)
    return StepLine(
        step=record.step or 0,
        steps_total=length.steps(record),
        at_most=length.at_most and not record.version,
        version=record.version,
        reward=record.reward,
        success=fmean((r.judged or 0.0) >= success for r in rollouts),
        alike_in=None if not are_alike else "the batch" if record.same_rewards is None else "each group",
        staleness_mean=fmean(record.staleness),
        staleness_max=max(record.staleness),
        masked_share=metrics.get("masked_share"),
        ratio_std=metrics.get("ratio_std"),
        entropy=metrics.get("entropy"),
        explained_variance=metrics.get("explained_variance"),
        switched_on={words: metrics[name] for name, words in _SWITCHED_ON.items() if name in metrics},
        tokens_per_second=record.tokens / max(seconds, 1e-9),
        rollouts=len(record.consumed),
        dropped=len(record.dropped) - failed,
        failed=failed,
        tool_errors=record.tool_fault_share,
        truncated=record.truncated,
        seconds=seconds,
    )
