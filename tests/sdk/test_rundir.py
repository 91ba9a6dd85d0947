"""Run directories: which can be begun, which continued, by whom, and what is said of the others."""

import fcntl
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from moonmill.algorithm_config import AlgorithmConfig, CriticConfig
from moonmill.config import Config, EnvConfig, LearnerConfig, ModelConfig, TrainConfig
from moonmill.errors import RunDirectoryError, RunError
from moonmill.rundir import RunDirectory

CONFIG = Config(env=EnvConfig("e-v0", {"level": 1}), model=ModelConfig("nowhere"), name="n", run_dir="r")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "run", CONFIG)
    directory.unlock()
    return directory


def begin(run: RunDirectory) -> None:
    run.rollouts.write_text("{}\n")


# Begun or not


def test_a_run_that_has_begun_is_not_overwritten(run: RunDirectory) -> None:
    begin(run)
    with pytest.raises(RunDirectoryError, match="already holds a run: continue it with --resume"):
        RunDirectory.create(run.path, CONFIG)


@pytest.mark.parametrize("method", ["create", "resume"])
def test_a_run_without_a_rollout_may_begin_again_with_another_config(run: RunDirectory, method: str) -> None:
    run.rollouts.touch()
    run.steps.touch()
    run.events.write_text('{"time":1.0,"kind":"failed"}\n')
    (run.checkpoints / "step-000000").mkdir()
    config = replace(CONFIG, model=ModelConfig("somewhere"))
    again = getattr(RunDirectory, method)(run.path, config)
    assert "path: somewhere" in again.config.read_text()
    assert not again.events.exists()
    assert not any(again.checkpoints.iterdir())


@pytest.mark.parametrize("left", ["steps.jsonl", "checkpoints/step-000020"])
def test_what_was_learned_is_never_begun_again(run: RunDirectory, left: str) -> None:
    path = run.path / left
    path.write_text("{}\n") if path.suffix else path.mkdir()
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        RunDirectory.create(run.path, CONFIG)
    assert path.exists()


def test_a_folder_with_other_things_in_it_keeps_them(tmp_path: Path) -> None:
    theirs = tmp_path / "checkpoints" / "step-000000" / "model"
    theirs.mkdir(parents=True)
    RunDirectory.create(tmp_path, CONFIG).unlock()
    assert theirs.exists()


# Continuing


def test_a_changed_config_is_refused_with_the_keys_that_differ_and_nothing_else(run: RunDirectory) -> None:
    begin(run)
    changed = replace(
        CONFIG,
        env=EnvConfig("e-v0", {"level": 2, "new": True}),
        learner=LearnerConfig(lr=2e-6),
        train=TrainConfig(seed=3, steps=7),
    )
    with pytest.raises(RunDirectoryError) as refused:
        RunDirectory.resume(run.path, changed)
    assert str(refused.value).splitlines() == [
        f"{run.path} was begun with other values, and a run keeps what it trains:",
        "  env.args.level: 1 then, 2 now",
        "  env.args.new: None then, True now",
        "  learner.lr: 1e-06 then, 2e-06 now",
        "  train.seed: 0 then, 3 now",
        "Set them back, or start a new run (another run_dir). On --resume may differ: engine, async, eval, "
        "sandbox, alarms, learner.device, learner.gradient_checkpointing, learner.micro_batch_tokens, "
        "learner.start_timeout, learner.step_timeout, and train but for train.seed",
    ]
    assert "level: 1" in run.config.read_text()


@pytest.mark.parametrize("who", ["policy", "critic"])
def test_where_a_learning_rate_falls_over_the_steps_they_are_what_is_trained(tmp_path: Path, who: str) -> None:
    """Steps that are done again after a crash would come out otherwise."""
    falling = (
        replace(CONFIG, learner=LearnerConfig(schedule="cosine"))
        if who == "policy"
        else replace(CONFIG, algorithm=AlgorithmConfig(critic=CriticConfig(schedule="linear")))
    )
    run = RunDirectory.create(tmp_path / "run", falling)
    begin(run)
    with pytest.raises(RunDirectoryError) as refused:
        RunDirectory.resume(run.path, replace(falling, train=TrainConfig(steps=7)))
    assert "  train.steps: 100 then, 7 now\n" in str(refused.value)
    assert str(refused.value).endswith("and train but for train.seed and train.steps")


def test_what_is_not_trained_may_change(run: RunDirectory) -> None:
    begin(run)
    RunDirectory.resume(run.path, replace(CONFIG, train=TrainConfig(steps=7))).unlock()
    assert "steps: 7" in run.config.read_text()


# Places


@pytest.mark.parametrize(
    ("name", "words"),
    [("x" * 5000, "cannot be a folder: File name too long"), ("a\0b", r"run_dir: a\\0b cannot be a folder: embedded")],
)
def test_a_name_that_no_folder_can_have_is_refused(name: str, words: str) -> None:
    with pytest.raises(RunDirectoryError, match=words) as refused:
        RunDirectory.create(Path(name), CONFIG)
    assert refused.value.exit_code == 2
    assert len(str(refused.value)) < 400


def test_a_file_is_no_run_directory_nor_holds_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="file is a file: choose another run_dir"):
        RunDirectory.create(tmp_path / "file", CONFIG)
    with pytest.raises(RunDirectoryError, match="cannot be a folder: Not a directory"):
        RunDirectory.create(tmp_path / "file" / "run", CONFIG)


def test_a_place_where_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(RunDirectoryError, match="/proc/run"):
        RunDirectory.create(Path("/proc/run"), CONFIG)


# Removed, moved or replaced while it is held


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
@pytest.mark.parametrize("method", ["lock", "watch"])
def test_a_folder_that_is_here_no_more_is_told(run: RunDirectory, method: str, how: str) -> None:
    getattr(run, method)()
    run.require_held()
    if how == "moved":
        run.path.rename(run.path.with_name("elsewhere"))
    else:
        shutil.rmtree(run.path)
    if how == "replaced":
        RunDirectory.create(run.path, CONFIG).unlock()
    with pytest.raises(RunError, match="was removed, moved or replaced while the run was going on") as told:
        run.require_held()
    assert told.value.exit_code == 1
    run.unlock()


def test_only_a_run_can_be_watched(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"is not a run directory in use: .*lock: No such file"):
        RunDirectory(tmp_path).watch()


# The lock

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


def test_a_run_that_another_process_trains_in_is_refused_and_told(run: RunDirectory) -> None:
    assert not run.in_use()
    with subprocess.Popen([sys.executable, "-c", HOLD, run.path / "lock"], stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        assert run.in_use()
        with pytest.raises(RunDirectoryError, match="another process is training in"):
            RunDirectory.resume(run.path, CONFIG)
        other.kill()
    RunDirectory.resume(run.path, CONFIG).unlock()


def test_looking_whether_a_run_is_in_use_never_keeps_a_trainer_from_it(run: RunDirectory) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            run.in_use()

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(100):
            run.lock()
            run.unlock()
    finally:
        over.set()
        for looker in lookers:
            looker.join()


def test_two_who_look_at_once_do_not_take_each_other_for_a_trainer(run: RunDirectory) -> None:
    with open(run.path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not run.in_use()


def test_a_trainer_waits_for_one_who_looks(run: RunDirectory) -> None:
    with open(run.path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        started = time.monotonic()
        run.lock()
        assert time.monotonic() - started > 0.1
    run.unlock()


def test_looking_at_a_run_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    assert not RunDirectory.open(tmp_path).in_use()
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]


def test_a_config_that_is_no_runs_is_not_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "config.yaml"
    mine.write_text("env: {id: mine}\n")
    with pytest.raises(RunDirectoryError, match=r"holds a config.yaml that is no run's"):
        RunDirectory.create(tmp_path, CONFIG)
    assert mine.read_text() == "env: {id: mine}\n"
