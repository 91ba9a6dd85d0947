"""Promise 3: kill any process at any moment, and nothing is lost and nothing is counted twice."""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from moonmill.config_io import load_config
from moonmill.rundir import RunDirectory
from tests.integration.conftest import (
    DEADLINE,
    Cli,
    assert_accounted_for,
    events,
    start,
    steps,
    wait_for_steps,
    wait_until,
    write_config,
)

POINTS = int(os.environ.get("MOONMILL_CRASH_POINTS", "1"))
"""Random moments per process; raise it for a longer search."""


@pytest.mark.parametrize("seed", range(POINTS))
@pytest.mark.parametrize("victim", ["engine", "learner"])
def test_a_killed_child_is_started_again_and_the_run_ends(config: Path, tmp_path: Path, victim: str, seed: int) -> None:
    run = tmp_path / "run"
    with start(config, tmp_path) as trainer:
        os.kill(pid_of(run, victim, trainer), 0)
        wait_for_steps(run, random.Random(f"{victim}{seed}").randint(1, 8), trainer)
        os.kill(pid_of(run, victim, trainer), signal.SIGKILL)
        assert trainer.wait(DEADLINE) == 0, trainer.communicate()
    assert events(run, f"{victim}_restarted")
    assert steps(run)[-1].version == 10
    assert_accounted_for(run)


def test_children_killed_before_they_are_ready_are_started_again(config: Path, tmp_path: Path) -> None:
    with start(config, tmp_path) as trainer:
        children = Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children")
        wait_until(lambda: len(children.read_text().split()) == 2, "the children to be there", trainer)
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        assert trainer.wait(DEADLINE) == 0, trainer.communicate()
    run = tmp_path / "run"
    assert events(run, "engine_died")
    assert events(run, "learner_died")
    assert_accounted_for(run)


@pytest.mark.parametrize("seed", range(POINTS))
def test_a_killed_controller_takes_its_children_along_and_resumes(
    config: Path, tmp_path: Path, moonmill: Cli, seed: int
) -> None:
    run = tmp_path / "run"
    with start(config, tmp_path) as trainer:
        wait_for_steps(run, random.Random(seed).randint(1, 8), trainer)
        children = [pid_of(run, name, trainer) for name in ("engine", "learner")]
        trainer.kill()
    wait_until(lambda: not any(alive(pid) for pid in children), "the children to end")
    done = len(steps(run))
    resumed = moonmill("train", config, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert [s.step for s in steps(run)] == list(range(1, 13))
    assert len(steps(run)) > done
    assert_accounted_for(run)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 updates, for copies to be damaged."""
    folder = tmp_path_factory.mktemp("trained")
    with start(write_config(folder), folder, "--set", "train.steps=8") as trainer:
        told, _ = trainer.communicate(timeout=DEADLINE)
    assert trainer.returncode == 0, told
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, where the test's config has its run."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.mark.parametrize("whole", [0, 1])
def test_a_damaged_checkpoint_is_passed_over_and_its_steps_are_done_again(
    attached: Path, run: Path, moonmill: Cli, whole: int
) -> None:
    checkpoints = sorted((run / "checkpoints").iterdir())
    for path in checkpoints[whole:]:
        weights = path / "policy" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
    resumed = moonmill("train", attached, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert f"{checkpoints[-1]} is damaged: policy/model.safetensors" in resumed.stderr
    assert [e.data["step"] for e in events(run, "step_repeated")] == list(range(9 if whole else 1, 11))
    assert [s.step for s in steps(run)] == list(range(1, 13))
    assert_accounted_for(run)


def test_checkpoints_that_the_logs_do_not_know_are_removed_with_a_warning_or_the_run_is_refused(
    attached: Path, run: Path, moonmill: Cli
) -> None:
    checkpoints = sorted((run / "checkpoints").iterdir())
    log = run / "steps.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"")
    refused = moonmill("train", attached, "--resume")
    assert refused.returncode == 2
    assert "steps.jsonl has no step" in refused.stderr
    assert sorted((run / "checkpoints").iterdir()) == checkpoints
    log.write_bytes(b"".join(lines[:9]))
    resumed = moonmill("train", attached, "--set", "train.steps=8", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert f"{checkpoints[-1]} is newer than step 9, the last in the run's logs" in resumed.stderr
    assert_accounted_for(run)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_run_whose_folder_is_gone_ends_and_leaves_alone_what_stands_in_its_place(
    attached: Path, tmp_path: Path, how: str
) -> None:
    run = tmp_path / "run"
    with start(attached, tmp_path) as trainer:
        wait_for_steps(run, 3, trainer)
        run.rename(tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone")
        if how == "replaced":
            RunDirectory.create(run, load_config(attached)).unlock()
        told, _ = trainer.communicate(timeout=DEADLINE)
    assert trainer.returncode == 1
    assert told.splitlines()[-1].startswith(f"error: the run directory {run} was removed, moved or replaced while")
    left = {p.name for p in run.rglob("*")} if run.exists() else None
    assert left == ({"config.yaml", "lock", "checkpoints", "weights", "logs"} if how == "replaced" else None)


def pid_of(run: Path, name: str, trainer: "subprocess.Popen[str]") -> int:
    wait_until(lambda: bool(events(run, f"{name}_started")), f"the {name} to start", trainer)
    return int(events(run, f"{name}_started")[-1].data["pid"])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; it only waits for whoever adopted it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_groups_with_members_missing_are_completed_under_a_lower_bound(
    attached: Path, tmp_path: Path, moonmill: Cli
) -> None:
    """More has finished than the new bound admits, and none of it is of use without what has not."""
    sets = ["--set", "algorithm={preset: grpo, advantage: {type: group_zscore, group_size: 4}}"]
    run = tmp_path / "run"
    assert moonmill("train", attached, *sets, "--set", "train.steps=2").returncode == 0
    shutil.rmtree(run / "checkpoints")
    (run / "steps.jsonl").unlink()
    lines = (run / "rollouts.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if msgspec.json.decode(line).get("index", 0) % 4 != 3]
    (run / "rollouts.jsonl").write_text("".join(kept))
    assert len(kept) > 8  # Bound 0 admits one batch.
    resumed = moonmill("train", attached, *sets, "--set", "async.max_staleness=0", "--resume", timeout=120)
    assert resumed.returncode == 0, resumed.stderr
    assert_accounted_for(run)
