"""A learner step as a record for the logs, and as a line that is shown while a run goes on."""

from statistics import fmean

from moonmill.reporting import StepLine
from moonmill.trainer.buffer import Batch
from moonmill.trainer.messages import StepAnswer
from moonmill.trainer.records import StepRecord
from moonmill.trainer.summary import means
from moonmill.types import Status


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
        action_tokens=sum(r.action_tokens for r in rollouts),
        tokens=sum(r.tokens for r in rollouts),
        env_metrics=means(r.metrics for r in rollouts),
        metrics=answer.metrics,
    )


def step_line(record: StepRecord, batch: Batch, steps_total: int, success: float) -> StepLine:
    """A committed step as a line.

    Args:
        record: the step.
        batch: what it trained on.
        steps_total: learner steps of the whole run.
        success: a reward of at least this is a success.
    """
    metrics, seconds = record.metrics, record.spans.wall
    failed = sum(d.reason.startswith("failed") or d.reason == "unscored" for d in record.dropped)
    return StepLine(
        step=record.step or 0,
        steps_total=steps_total,
        version=record.version,
        reward=record.reward,
        success=fmean((r.reward or 0.0) >= success for r in batch.rollouts),
        staleness_mean=fmean(record.staleness),
        staleness_max=max(record.staleness),
        masked_share=metrics.get("masked_share"),
        ratio_std=metrics.get("ratio_std"),
        entropy=metrics.get("entropy"),
        explained_variance=metrics.get("explained_variance"),
        tokens_per_second=record.tokens / max(seconds, 1e-9),
        rollouts=len(record.consumed),
        dropped=len(record.dropped) - failed,
        failed=failed,
        tool_errors=record.tool_fault_share,
        truncated=record.truncated,
        seconds=seconds,
    )
