"""A run in figures, read from its logs."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from moonmill.config import Config, EnvConfig, ModelConfig
from moonmill.reporting import Summary
from moonmill.rundir import RunDirectory
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.records import StepRecord
from moonmill.trainer.summary import summarize
from moonmill.types import Rollout, Status, StopReason, Task

FINISHED = Rollout("0", "test-v0", Task("?"), Status.FINISHED, StopReason.ANSWERED, reward=1.0)
TRUNCATED = msgspec.structs.replace(FINISHED, status=Status.TRUNCATED, stop_reason=StopReason.MAX_TURNS)


def summary_of(folder: Path, rollouts: Sequence[Rollout], steps: Sequence[StepRecord] = ()) -> Summary:
    directory = RunDirectory.create(folder / "run", Config(env=EnvConfig("test-v0"), model=ModelConfig("nowhere")))
    ledger = Ledger(directory)
    for rollout in rollouts:
        ledger.rollout(rollout)
    for step in steps:
        ledger.step(step)
    ledger.close()
    directory.unlock()
    return summarize(directory.path)


def test_the_share_that_a_limit_ended_is_of_all_finished_rollouts(tmp_path: Path) -> None:
    assert summary_of(tmp_path, [FINISHED, TRUNCATED, TRUNCATED, FINISHED]).truncated == 0.5


def test_a_run_without_rollouts_has_no_such_share(tmp_path: Path) -> None:
    assert summary_of(tmp_path, []).truncated is None


def test_metrics_are_those_of_the_newest_steps(tmp_path: Path) -> None:
    old = [StepRecord(step, step, env_metrics={"calls": 9.0}) for step in range(1, 6)]
    new = [StepRecord(step, step, env_metrics={"calls": 1.0 + step % 2}) for step in range(6, 16)]
    assert summary_of(tmp_path, [], [*old, *new]).metrics == {"calls": 1.5}
