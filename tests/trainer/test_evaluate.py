"""What an evaluation makes of its rollouts."""

from moonmill.reporting import Failure
from moonmill.trainer.evaluate import result_of
from moonmill.types import Rollout, Status, StopReason, Task


def rollout(status: Status = Status.FINISHED, **fields: object) -> Rollout:
    return Rollout("r", "e-v0", Task("?"), status, StopReason.ANSWERED, **{"reward": 1.0, **fields})  # type: ignore[arg-type]


def test_the_share_that_a_limit_ended_is_of_the_scored_rollouts() -> None:
    rollouts = [rollout(), rollout(Status.TRUNCATED), rollout(Status.TRUNCATED), rollout(Status.FAILED)]
    result = result_of(rollouts, "eval", 0, 1.0, 1.0)
    assert (result.samples, result.failed, result.truncated) == (3, 1, 2 / 3)


def test_a_metric_is_averaged_over_the_rollouts_that_have_it() -> None:
    rollouts = [rollout(metrics={"calls": 2.0, "depth": 5.0}), rollout(metrics={"calls": 3.0}), rollout()]
    assert result_of(rollouts, "eval", 0, 1.0, 1.0).metrics == {"calls": 2.5, "depth": 5.0}


def test_why_rollouts_failed_is_told_with_the_last_error_of_each_reason() -> None:
    failed = (rollout(Status.FAILED, error=f"error {number}") for number in range(2))
    result = result_of([rollout(), rollout(reward=None, error="took too long"), *failed], "eval", 0, 1.0, 1.0)
    assert result.failed == 3
    assert result.failures == (Failure("answered", 2, "error 1"), Failure("unscored", 1, "took too long"))
