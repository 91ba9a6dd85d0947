"""`moonmill compare` with real runs: it is stopped and goes on, and its runs end with it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moonmill.rundir import RunDirectory
from moonmill.trainer.summary import read_events
from tests.integration.conftest import DEADLINE, assert_accounted_for, events, steps, wait_for_steps, wait_until

STEPS = 6


def compare(config: Path, folder: Path) -> "subprocess.Popen[str]":
    arms = ("--vary", "slow:learner.lr=1e-5", "--vary", "fast:learner.lr=1e-4", "--seeds", "1", "--out", str(folder))
    return subprocess.Popen(
        [sys.executable, "-m", "moonmill", "compare", str(config), *arms, "--set", f"train.steps={STEPS - 2}"],
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def status(run: Path) -> str:
    return read_events(RunDirectory.open(run)).status


def test_ctrl_c_stops_the_run_that_goes_on_and_the_same_command_finishes_all(attached: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    first, second = folder / "slow-seed0", folder / "fast-seed0"
    with compare(attached, folder) as process:
        wait_for_steps(first, 3, process)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, told
    assert "[1/2] slow, seed 0: begins" in told
    assert f"stopped; go on with: moonmill compare {attached}" in told
    assert "moonmill train" not in told
    assert status(first) == "stopped"
    assert 3 <= len(steps(first)) < STEPS
    assert not second.exists()

    with compare(attached, folder) as process:
        table, told = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, told
    assert "[1/2] slow, seed 0: goes on" in told
    assert "[2/2] fast, seed 0: begins" in told
    assert f"{8 * STEPS} rollouts a run" in table
    assert (folder / "compare.json").exists()
    for run, starts in ((first, 2), (second, 1)):
        assert status(run) == "finished"
        assert [s.step for s in steps(run)] == list(range(1, STEPS + 1))
        assert len(events(run, "started")) == starts
        assert_accounted_for(run)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_does_not_outlive_the_comparison(attached: Path, tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "compared"
    run = folder / "slow-seed0"
    with compare(attached, folder) as process:
        wait_for_steps(run, 2, process)
        process.send_signal(number)
        process.communicate(timeout=DEADLINE)
    wait_until(lambda: not RunDirectory.open(run).in_use(), "the run to end")
    assert status(run) == "stopped", "it has stopped in good order, with a checkpoint"
    assert not (folder / "fast-seed0").exists()
