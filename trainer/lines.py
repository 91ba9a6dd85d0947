"""What is shown of a learner step while a run goes on."""

from statistics import fmean

from moonmill.reporting import StepLine
from moonmill.trainer.buffer import Batch
from moonmill.trainer.records import StepRecord


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
