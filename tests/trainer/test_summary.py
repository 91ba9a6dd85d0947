"""A run in figures, read from its logs."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from moonmill.config import Config, EnvConfig, ModelConfig
from moonmill.envs.sandbox_host import SandboxFigures
from moonmill.reporting import Alike, Spread, Summary
from moonmill.rundir import RunDirectory
from moonmill.trainer.buffer import Drop
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.records import StepRecord
from moonmill.trainer.summary import fates, summarize
from moonmill.types import Rollout, Status, StopReason, Task, Timings, ToolFault

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


def test_rollouts_with_nothing_to_tell_them_apart_are_counted_by_group_or_by_step(tmp_path: Path) -> None:
    steps = [StepRecord(1, 1, consumed=("0", "1")), StepRecord(2, 2, consumed=("2", "3", "4", "5"))]
    rewards, groups = (1.0, 1.0, 0.0, 0.0, 1.0, 0.0), ("a", "a", "b", "b", "c", "c")
    alone = [msgspec.structs.replace(FINISHED, id=str(i), reward=reward) for i, reward in enumerate(rewards)]
    assert summary_of(tmp_path / "none", alone).alike is None
    assert summary_of(tmp_path / "alone", alone, steps).alike == Alike(False, 1 / 3, 1, 2)
    grouped = [msgspec.structs.replace(r, group=group) for r, group in zip(alone, groups, strict=True)]
    assert summary_of(tmp_path / "grouped", grouped, steps).alike == Alike(True, 2 / 3, 1, 2)


def test_metrics_are_those_of_the_newest_steps(tmp_path: Path) -> None:
    old = [StepRecord(step, step, env_metrics={"calls": 9.0}) for step in range(1, 6)]
    new = [StepRecord(step, step, env_metrics={"calls": 1.0 + step % 2}) for step in range(6, 16)]
    assert summary_of(tmp_path, [], [*old, *new]).metrics == {"calls": 1.5}


def test_tools_that_the_model_made_up_are_one_fault(tmp_path: Path) -> None:
    faults = (
        ToolFault("calculate", "ZeroDivisionError", 3, "division by zero"),
        ToolFault("fly", "unknown_tool", 1, "no tool fly"),
        ToolFault("swim", "unknown_tool", 2, "no tool swim"),
    )
    one, other = (msgspec.structs.replace(FINISHED, tool_faults=of) for of in (faults, faults[:2]))
    assert summary_of(tmp_path, [one, one, other]).tool_faults == (
        ToolFault("calculate", "ZeroDivisionError", 9, "division by zero"),
        ToolFault("(unknown)", "unknown_tool", 7, "names: 2; most often 'swim': 4×"),
    )


def test_one_tool_that_was_made_up_is_named(tmp_path: Path) -> None:
    fly = msgspec.structs.replace(FINISHED, tool_faults=(ToolFault("fly", "unknown_tool", 2, "no tool fly"),))
    (fault,) = summary_of(tmp_path, [fly]).tool_faults
    assert fault.example == "names: 1; most often 'fly': 2×"


def test_every_finished_rollout_is_trained_on_given_up_or_pending(tmp_path: Path) -> None:
    steps = [
        StepRecord(1, 1, consumed=("0", "1", "2"), dropped=(Drop("3", "stale"),)),
        StepRecord(None, 1, dropped=(Drop("4", "failed: env_error"),)),
    ]
    summary = summary_of(tmp_path, [msgspec.structs.replace(FINISHED, id=str(i)) for i in range(7)], steps)
    assert (summary.rollouts_finished, summary.rollouts_trained, summary.pending) == (7, 3, 2)


def test_what_became_of_sandboxes_is_summed_up_and_their_waiting_averaged(tmp_path: Path) -> None:
    without = summary_of(tmp_path / "without", [FINISHED])
    assert (without.sandboxes, without.sandbox_seconds) == ({}, None)
    steps = [
        StepRecord(1, 1, sandboxes=SandboxFigures(waiting=2, in_use=3, created=10, reused=4)),
        StepRecord(2, 2, sandboxes=SandboxFigures(in_use=1, created=5, failed=1)),
    ]
    waited = msgspec.structs.replace(FINISHED, timings=Timings(sandbox=1.5))
    summary = summary_of(tmp_path / "with", [waited, FINISHED], steps)
    assert (summary.sandboxes, summary.sandbox_seconds) == ({"created": 15, "reused": 4, "failed": 1}, 0.75)


def test_why_it_failed_what_it_trained_with_and_how_long_episodes_took(tmp_path: Path) -> None:
    slow = [msgspec.structs.replace(FINISHED, timings=Timings(total=t, environment=t / 2)) for t in (1.0, 2.0, 60.0)]
    fell = StepRecord(3, 3, rolled_back_to=1, lr_scale=0.5)
    summary = summary_of(tmp_path, slow, [StepRecord(1, 1), fell])
    config = Config(env=EnvConfig("test-v0"), model=ModelConfig("nowhere"))
    assert (summary.preset, summary.lr, summary.critic_lr) == ("sao", config.learner.lr / 2, 5e-6 / 2)
    assert summary.episode_seconds == Spread(2.0, 60.0, 60.0)
    assert summary.tool_seconds == Spread(1.0, 30.0, 30.0)
    ledger = Ledger(RunDirectory.open(tmp_path / "run"))
    ledger.event("started")
    ledger.event("failed", error="it burns")
    ledger.close()
    assert summarize(tmp_path / "run").error == "it burns"


def test_the_fate_of_a_rollout_is_told_in_words(tmp_path: Path) -> None:
    step = StepRecord(7, 5, consumed=("0",), dropped=(Drop("1", "stale"),))
    summary_of(tmp_path, [], [step])
    assert fates(RunDirectory.open(tmp_path / "run"), {"0", "1", "2"}) == {
        "0": "trained on in step 7",
        "1": "dropped: stale",
        "2": "not yet trained on",
    }


def test_what_a_fall_back_undid_is_told(tmp_path: Path) -> None:
    steps = [
        StepRecord(1, 1, consumed=("0",)),
        StepRecord(2, 2, consumed=("1",)),
        StepRecord(3, 3, rolled_back_to=1),
        StepRecord(4, 4, consumed=("2",)),
        StepRecord(5, 5, rolled_back_to=4),
    ]
    assert summary_of(tmp_path, [], steps).fall_backs == 2
    assert fates(RunDirectory.open(tmp_path / "run"), {"0", "1", "2"}) == {
        "0": "trained on in step 1",
        "1": "trained on in step 2, which was undone in step 3",
        "2": "trained on in step 4",
    }


def test_alarms_are_counted_and_one_that_was_repeated_after_a_crash_counts_once(tmp_path: Path) -> None:
    summary_of(tmp_path, [])
    run = RunDirectory.resume(tmp_path / "run", Config(env=EnvConfig("test-v0"), model=ModelConfig("nowhere")))
    ledger = Ledger(run)
    for name, step in (("entropy", 3), ("entropy", 3), ("entropy", 9), ("ess", 3)):
        ledger.event("alarm", name=name, step=step, text="")
    ledger.close()
    run.unlock()
    assert summarize(run.path).alarms == {"entropy": 2, "ess": 1}


def test_the_largest_difference_of_the_probe_is_told(tmp_path: Path) -> None:
    assert summary_of(tmp_path, []).probe_difference_max is None
    run = RunDirectory.resume(tmp_path / "run", Config(env=EnvConfig("test-v0"), model=ModelConfig("nowhere")))
    ledger = Ledger(run)
    for difference in (1e-6, 3e-6, 2e-6):
        ledger.event("version_published", probe_difference=difference)
    ledger.event("version_published")
    ledger.close()
    run.unlock()
    assert summarize(run.path).probe_difference_max == 3e-6
