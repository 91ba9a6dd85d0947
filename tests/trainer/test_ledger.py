"""What the logs say after a crash at any point."""

import errno
import os
import socket
from pathlib import Path

import pytest

from moonmill.config import Config, EnvConfig, ModelConfig
from moonmill.errors import RunDirectoryError
from moonmill.rundir import RunDirectory
from moonmill.trainer import checkpoint
from moonmill.trainer.buffer import Drop
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.records import StepRecord
from moonmill.types import Rollout, Status, StopReason, Task


def rollout(index: int) -> Rollout:
    return Rollout(f"{index:08d}", "test-v0", Task("?"), Status.FINISHED, StopReason.ANSWERED, index=index, reward=1.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", Config(env=EnvConfig("test-v0"), model=ModelConfig("nowhere")))


def written(run: RunDirectory, indices: list[int], steps: list[StepRecord]) -> Ledger:
    ledger = Ledger(run)
    for index in indices:
        ledger.rollout(rollout(index))
    for record in steps:
        ledger.step(record)
    return ledger


def test_a_new_run_has_nothing_to_recover(run: RunDirectory) -> None:
    recovery = Ledger(run).recover()
    assert (recovery.step, recovery.version, recovery.pending, recovery.next_index) == (0, 0, (), 0)


def test_finished_rollouts_are_consumed_dropped_or_pending(run: RunDirectory) -> None:
    first = StepRecord(1, 0, consumed=("00000000", "00000002"), dropped=(Drop("00000001", "stale"),))
    second = StepRecord(2, 1, consumed=("00000003",))
    recovery = written(run, [0, 2, 1, 3, 4], [first, second]).recover()
    assert (recovery.step, recovery.version) == (2, 1)
    assert [r.index for r in recovery.pending] == [4]


def test_episodes_that_did_not_finish_are_played_again_and_none_is_skipped(run: RunDirectory) -> None:
    recovery = written(run, [0, 3, 5], []).recover()
    assert recovery.holes == (1, 2, 4)
    assert recovery.next_index == 6


def test_lost_logs_do_not_cost_the_checkpoints(run: RunDirectory) -> None:
    path = checkpoint.write(run.path, 8, 2, lambda folder: (folder / "state.json").write_text("{}"))
    ledger = written(run, [0, 1], [StepRecord(None, 0)])
    with pytest.raises(RunDirectoryError, match=r"steps\.jsonl has no step, but .* a checkpoint of step 8: .* Bring"):
        ledger.recover()
    assert path.exists()


def test_episodes_that_were_trained_on_are_not_played_again_where_the_log_has_lost_them(run: RunDirectory) -> None:
    ledger = written(run, [0, 1, 2], [StepRecord(1, 1, ("00000000",), (Drop("00000001", "stale"),))])
    lines = run.rollouts.read_bytes().splitlines(keepends=True)
    run.rollouts.write_bytes(lines[2])
    with pytest.raises(RunDirectoryError, match=r"names 2 rollouts that .*rollouts\.jsonl does not have, .*00000000: "):
        ledger.recover()


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ((0, 2, 3, 4), r"line 2 is of step 3, where step 2 belongs"),
        ((1, 2, 3, 4), r"line 1 is of step 2, where step 1 belongs"),
        ((0, 1, 1, 2, 3, 4), r"line 3 is of step 2, where step 3 belongs"),
        ((0, 1, 3, 2, 4), r"line 3 is of step 4, where step 3 belongs"),
    ],
    ids=["missing", "the first missing", "doubled", "swapped"],
)
def test_a_step_that_is_missing_doubled_or_in_another_place_is_refused(
    run: RunDirectory, order: tuple[int, ...], told: str
) -> None:
    """What a missing step has consumed would be trained on again."""
    steps = [StepRecord(i + 1, i + 1, (f"{i:08d}",)) for i in range(4)]
    ledger = written(run, [0, 1, 2, 3], [*steps, StepRecord(None, 4)])
    lines = run.steps.read_bytes().splitlines(keepends=True)
    run.steps.write_bytes(b"".join(lines[i] for i in order))
    with pytest.raises(RunDirectoryError, match=rf"steps\.jsonl, {told}: .*Bring the whole steps\.jsonl back"):
        ledger.recover()


@pytest.mark.parametrize("index", [0, 2], ids=["consumed", "pending"])
def test_a_rollout_that_stands_there_twice_is_refused(run: RunDirectory, index: int) -> None:
    ledger = written(run, [0, 1, 2, index], [StepRecord(1, 1, ("00000000",), (Drop("00000001", "stale"),))])
    with pytest.raises(RunDirectoryError, match=rf"rollouts\.jsonl, line 4 has rollout 0000000{index} for the second "):
        ledger.recover()


def test_a_torn_last_line_is_cut_off_and_its_episode_played_again(run: RunDirectory) -> None:
    written(run, [0, 1], []).close()
    whole = run.rollouts.read_bytes()
    run.rollouts.write_bytes(whole[:-10])
    recovery = written(run, [2], []).recover()
    assert [r.index for r in recovery.pending] == [0, 2]
    assert recovery.holes == (1,)


def test_steps_after_a_checkpoint_come_with_their_rollouts_in_order(run: RunDirectory) -> None:
    steps = [StepRecord(1, 1, ("00000000",)), StepRecord(2, 2, ("00000002", "00000001")), StepRecord(None, 2)]
    ledger = written(run, [0, 1, 2], steps)
    assert [(record.step, [r.index for r in rollouts]) for record, rollouts in ledger.steps_after(1)] == [(2, [2, 1])]


def test_a_step_is_on_the_disk_before_it_counts_and_its_rollouts_before_it(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss keeps what was synced, and of the rest anything: so at each sync, look at what is to be kept."""
    ledger = Ledger(run)
    kept = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        kept.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", watched)
    ledger.rollout(rollout(0))
    ledger.step(StepRecord(1, 1, ("00000000",)))
    assert kept == [("rollouts.jsonl", run.rollouts.stat().st_size), ("steps.jsonl", run.steps.stat().st_size)]


def test_that_there_are_logs_is_on_the_disk_as_well(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    Ledger(run)
    assert str(run.path) in synced


def test_a_disk_that_fails_at_a_commit_is_told_with_its_file(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = written(run, [0], [])

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunDirectoryError, match=r"cannot write .*rollouts\.jsonl: Input/output error"):
        ledger.step(StepRecord(1, 1, ("00000000",)))
    monkeypatch.undo()
    assert Ledger(run).recover().step == 0


def test_steps_that_were_gone_back_behind_are_not_done_again_but_stay_consumed(run: RunDirectory) -> None:
    names = [f"{index:08d}" for index in range(6)]
    steps = [StepRecord(i + 1, i + 1, (names[i],)) for i in range(4)]
    steps += [StepRecord(5, 5, rolled_back_to=2, lr_scale=0.5), StepRecord(6, 6, (names[4],))]
    ledger = written(run, list(range(6)), steps)
    assert [record.step for record, _ in ledger.steps_after(0)] == [1, 2, 5, 6]
    assert [record.step for record, _ in ledger.steps_after(2)] == [5, 6]
    assert ledger.given_up() == {3, 4}
    recovery = ledger.recover()
    assert (recovery.step, recovery.version) == (6, 6)
    assert [r.id for r in recovery.pending] == [names[5]]
    assert [r.rolled_back_to for r in recovery.fall_backs] == [2]
    assert recovery.batches == 5
    # A second one goes back behind the first: that is given up too.
    ledger.step(StepRecord(7, 7, rolled_back_to=1, lr_scale=0.25))
    assert [record.step for record, _ in ledger.steps_after(0)] == [1, 7]


def test_logs_of_two_runs_are_told_apart(run: RunDirectory) -> None:
    ledger = written(run, [0], [StepRecord(1, 1, ("00000009",))])
    with pytest.raises(RunDirectoryError, match="00000009"):
        list(ledger.steps_after(0))


def test_a_second_trainer_in_one_run_directory_is_refused(run: RunDirectory) -> None:
    with pytest.raises(RunDirectoryError, match="another process is training"):
        RunDirectory.open(run.path).lock()


def test_a_fork_does_not_hold_the_run(run: RunDirectory) -> None:
    ours, forks = socket.socketpair()
    if not (pid := os.fork()):
        ours.close()
        forks.send(b"here")
        forks.recv(1)
        os._exit(0)
    forks.close()
    try:
        assert ours.recv(4) == b"here"
        with pytest.raises(RunDirectoryError, match="another process is training"):
            RunDirectory.open(run.path).lock()
        run.unlock()
        assert not RunDirectory.open(run.path).in_use()
    finally:
        ours.close()
        os.waitpid(pid, 0)
