"""The main job in small: a real policy, a real engine and learner, and what the run's files say afterwards."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from moonmill.config_io import load_config
from moonmill.errors import RunError
from moonmill.jsonl import read_jsonl
from moonmill.reporting import EvalResult, StepLine
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.run import train
from moonmill.types import Rollout
from tests.integration.conftest import (
    Cli,
    as_json,
    assert_accounted_for,
    events,
    start,
    steps,
    wait_for_steps,
    wait_until,
    write_config,
)

NOISY = """
import os
from moonmill import tool
from moonmill.envs.library.calculator import Calculator

print("noise of the module")

class Noisy(Calculator):
    @tool
    def calculate(self, expression: str) -> str:
        "Work it out."
        print("noise of the tool")
        os.system("echo noise of a program")
        return super().calculate(expression)
"""

RESTLESS = """
import os, tempfile
from moonmill import tool
from moonmill.envs.library.calculator import Calculator

class Restless(Calculator):
    @tool
    def calculate(self, expression: str) -> str:
        "Work it out."
        os.chdir(tempfile.mkdtemp())
        return super().calculate(expression)
"""


class Finished(NamedTuple):
    """A run that was trained to its end, in a folder with modules that have the names of others'."""

    config: Path
    run: Path
    result: "subprocess.CompletedProcess[str]"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "noisy.py").write_text(NOISY)
    for name in ("queue", "attrs"):
        (folder / f"{name}.py").write_text("raise SystemExit('not this one')")
    config = write_config(folder)
    # Not `python -m`, which would look for modules in the folder first.
    script = Path(sys.executable).with_name("moonmill")
    command = [script, "train", config, "--json", "--set", "eval.tasks=16", "--set", "env.id=noisy.py:Noisy"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    return Finished(config, folder / "run", result)


def test_a_run_trains_publishes_and_accounts_for_every_rollout(finished: Finished) -> None:
    run = finished.run
    summary = as_json(finished.result)
    assert isinstance(summary, dict)
    assert (summary["status"], summary["version"]) == ("finished", 10)
    assert [(e["label"], e["temperature"]) for e in summary["evals"]] == [
        ("before", 1.0),
        ("before", 0.0),
        ("after", 1.0),
        ("after", 0.0),
    ]
    assert all(e["metrics"]["tool_calls"] >= 0 for e in (*summary["evals"], summary))
    assert_accounted_for(run)
    assert max(s for record in steps(run) for s in record.staleness) <= 2
    assert {"masked_share", "ratio_std", "ratio_min", "ratio_max"} <= set(steps(run)[-1].metrics)
    assert [e.data["version"] for e in events(run, "version_published")][-1] == 10
    # Weights of versions out of use are gone; the engine holds what is left.
    assert len(list((run / "weights").iterdir())) <= 2


def test_tools_that_print_do_not_spoil_the_results_in_json(finished: Finished) -> None:
    assert as_json(finished.result)
    for who in ("the module", "the tool", "a program"):
        assert f"noise of {who}" in finished.result.stderr


def test_every_token_keeps_the_version_that_sampled_it(finished: Finished) -> None:
    done = 0
    for rollout in read_jsonl(finished.run / "rollouts.jsonl", Rollout):
        versions = [v for action in rollout.actions for v in action.versions]
        assert versions == sorted(versions)
        done = max(done, versions[-1])
    assert done > 0


def test_an_evaluation_of_a_run_names_its_version(finished: Finished, moonmill: Cli) -> None:
    result = moonmill("eval", finished.run, "--tasks", 4, "--temperature", 1, "--json")
    assert result.returncode == 0, result.stderr
    (evaluation,) = msgspec.json.decode(result.stdout, type=list[EvalResult])
    assert evaluation.version == 10


def test_a_finished_run_says_how_to_go_on(finished: Finished, moonmill: Cli, tmp_path: Path) -> None:
    shutil.copytree(finished.run, tmp_path / "run")
    run = ["--set", f"run_dir={tmp_path / 'run'}", "--set", "env.id=noisy.py:Noisy"]
    again = moonmill("train", finished.config, *run)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert "raise train.steps" in moonmill("train", finished.config, *run, "--resume").stderr
    assert moonmill("train", finished.config, *run, "--set", "train.steps=11", "--resume").returncode == 0


def test_a_tool_that_changes_the_working_directory_takes_no_part_of_the_run_along(
    moonmill: Cli, attached: Path, tmp_path: Path
) -> None:
    (tmp_path / "restless.py").write_text(RESTLESS)
    sets = ("run_dir=run", "env.id=restless.py:Restless", "train={steps: 2, checkpoint_every: 1}", "eval.tasks=4")
    done = moonmill("train", attached, *(word for one in sets for word in ("--set", one)), "--json")
    assert done.returncode == 0, done.stderr
    summary = as_json(done)
    assert isinstance(summary, dict)
    assert (summary["run"], summary["status"]) == ("run", "finished")
    run = tmp_path / "run"
    assert "\nrun_dir: run\n" in (run / "config.yaml").read_text()
    assert (run / "checkpoints" / "step-000004").is_dir()
    assert_accounted_for(run)


def test_on_policy_training_is_exactly_on_policy(moonmill: Cli, attached: Path, tmp_path: Path) -> None:
    assert moonmill("train", attached, "--set", "async.max_staleness=0", "--set", "train.steps=4").returncode == 0
    records = steps(tmp_path / "run")
    assert {s for record in records for s in record.staleness} == {0}
    trained = [r for r in records if "masked_share" in r.metrics]
    assert all(r.metrics["masked_share"] == 0.0 for r in trained)
    assert all(r.metrics["logprob_diff_max"] < 1e-3 for r in trained)


def test_grpo_goes_through_the_same_path(moonmill: Cli, attached: Path, tmp_path: Path) -> None:
    group = "algorithm={preset: grpo, advantage: {type: group_zscore, group_size: 4}}"
    result = moonmill("train", attached, "--set", group, "--set", "train.steps=4")
    assert result.returncode == 0, result.stderr
    assert_accounted_for(tmp_path / "run")
    groups: dict[str | None, set[str]] = {}
    for rollout in read_jsonl(tmp_path / "run" / "rollouts.jsonl", Rollout):
        groups.setdefault(rollout.group, set()).add(rollout.task.id)
    assert None not in groups
    assert all(len(tasks) == 1 for tasks in groups.values())


def test_an_adapter_goes_through_the_same_path_and_on_from_where_it_stopped(
    moonmill: Cli, config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    sets = ["--set", "model.lora={r: 4, alpha: 8}", "--set", "learner.lr=1e-3"]
    assert moonmill("train", config, *sets, "--set", "train.steps=3").returncode == 0
    resumed = moonmill("train", config, *sets, "--set", "train.steps=6", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert_accounted_for(run)
    assert [s.version for s in steps(run)] == [0, 0, 1, 2, 3, 4, 5, 6]
    assert events(run, "warning") == []
    for folder in (*(run / "weights").iterdir(), *(run / "checkpoints").glob("*/policy")):
        assert {f.name for f in folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
        assert not (folder / "model.safetensors").exists()
    played = moonmill("eval", run, "--tasks", 4, "--temperature", 1, "--json")
    (evaluation,) = msgspec.json.decode(played.stdout, type=list[EvalResult])
    assert evaluation.version == 6


def test_groups_of_which_none_is_ever_complete_end_the_run_with_the_reasons(
    moonmill: Cli, attached: Path, tmp_path: Path
) -> None:
    (tmp_path / "rarely.py").write_text(RARELY)
    group = "algorithm={preset: grpo, advantage: {type: group_zscore, group_size: 4, min_valid: 4}}"
    sets = ["--set", group, "--set", f"env={{id: '{tmp_path / 'rarely.py'}:Rarely'}}", "--set", "train.max_failures=24"]
    result = moonmill("train", attached, *sets, timeout=120)
    assert result.returncode == 1
    assert re.search(
        r"the last 24 rollouts were of no use .*\d+ failed: env_error, \d+ group_incomplete", result.stderr
    )
    assert "4 of its 4 members (min_valid)" in result.stderr
    assert "three of four" in result.stderr


RARELY = """
import itertools
from moonmill import MultiTurnEnv, Task, reward

count = itertools.count()

class Rarely(MultiTurnEnv):
    def tasks(self, split):
        while True:
            yield Task("2+2")

    def reset(self, *, seed=None, options=None):
        if next(count) % 4:
            raise ValueError("three of four")
        return super().reset(seed=seed, options=options)

    @reward
    def always(self, rollout):
        return 1.0
"""


@pytest.mark.parametrize("algorithm", ["{preset: sao}", "{preset: grpo, advantage: {type: group_zscore}}"])
def test_rewards_that_are_all_the_same_are_told_once_and_publishing_is_not_blamed(
    moonmill: Cli, attached: Path, tmp_path: Path, algorithm: str
) -> None:
    (tmp_path / "nothing.py").write_text(RARELY.replace("next(count) % 4", "False").replace("1.0", "0.0"))
    sets = ["--set", f"algorithm={algorithm}", "--set", f"env={{id: '{tmp_path / 'nothing.py'}:Rarely'}}"]
    result = moonmill("train", attached, *sets)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("every reward of the last 64 rollouts is 0") == 1
    assert "may not have arrived" not in result.stderr


def test_ctrl_c_stops_once_with_a_checkpoint_and_the_run_resumes(moonmill: Cli, attached: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "moonmill", "train", str(attached), "--set", "train.steps=30"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as trainer:
        deadline = time.monotonic() + 120
        while len(steps(run)) < 5:
            assert trainer.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        trainer.send_signal(signal.SIGINT)
        _, errors = trainer.communicate(timeout=60)
    assert trainer.returncode == 1
    assert "--resume" in errors
    assert "Traceback" not in errors
    reached = len(steps(run))
    assert (run / "checkpoints" / f"step-{reached:06d}").is_dir()
    summary = as_json(moonmill("inspect", run, "--json"))
    assert isinstance(summary, dict)
    resumed = moonmill("train", attached, "--set", "train.steps=30", "--resume")
    assert resumed.returncode == 0
    version, pending = summary["version"], summary["pending"]
    assert f"resuming after step {reached}, version {version}, with {pending} finished rollouts" in resumed.stderr
    assert steps(run)[-1].version == 30
    assert_accounted_for(run)


def test_a_second_ctrl_c_stops_at_once_and_the_run_resumes(moonmill: Cli, config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "moonmill", "train", str(config), "--set", "train.steps=200"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as trainer:
        deadline = time.monotonic() + 120
        while not steps(run):
            assert trainer.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        trainer.send_signal(signal.SIGINT)
        time.sleep(0.05)
        trainer.send_signal(signal.SIGINT)
        _, errors = trainer.communicate(timeout=60)
    assert trainer.returncode == 1
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert moonmill("inspect", run).returncode == 0
    again = len(steps(run)) + 2
    assert moonmill("train", config, "--set", f"train.steps={again}", "--resume").returncode == 0
    assert_accounted_for(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_the_run_begins_and_while_it_ends_give_one_answer(
    config: Path, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "moonmill", "train", str(config)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as trainer:
        assert trainer.stderr is not None
        lines = iter(trainer.stderr.readline, "")
        assert any(line.startswith("starting engine and learner") for line in lines)
        trainer.send_signal(number)
        answer = next(lines)
        time.sleep(0.05)
        trainer.send_signal(number)
        _, more = trainer.communicate(timeout=60)
    assert (trainer.returncode, more) == (1, "")
    assert answer.startswith("stopped; resume with: moonmill train")


def test_stopped_before_it_began_a_run_has_nothing_to_resume(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moonmill", "train", str(config)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as trainer:
        assert trainer.stderr is not None
        assert trainer.stderr.readline() == "checking the config\n"
        trainer.send_signal(signal.SIGTERM)
        _, errors = trainer.communicate(timeout=60)
    assert trainer.returncode == 1
    assert "nothing to resume" in errors
    assert not (tmp_path / "run").exists()


class Quiet:
    """A reporter that tells nobody."""

    def phase(self, text: str) -> None: ...

    def step(self, line: StepLine) -> None: ...

    def eval(self, result: EvalResult) -> None: ...

    def warn(self, text: str) -> None: ...


class PressedAtTheEnd(Quiet):
    """Ctrl-C comes when the last step has been done, and the last checkpoint has not."""

    def step(self, line: StepLine) -> None:
        if line.step == line.steps_total:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("tasks", [0, 8])
def test_ctrl_c_after_the_last_step_leaves_its_checkpoint(attached: Path, tmp_path: Path, tasks: int) -> None:
    sets = ["train.steps=2", f"eval={{tasks: {tasks}, temperatures: [0.0]}}"]
    settings = load_config(attached, sets)
    summary = train(settings, resume=False, reporter=PressedAtTheEnd())
    assert summary.version == 2
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000004"]
    assert summary.status == ("stopped" if tasks else "finished")
    if tasks:
        summary = train(settings, resume=True, reporter=Quiet())
        assert summary.status == "finished"
        assert [result.label for result in summary.evals] == ["before", "after"]
    assert_accounted_for(tmp_path / "run")


def test_ctrl_c_changes_nothing_of_a_run_that_has_finished(attached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Ledger.event

    def event(self: Ledger, kind: str, **data: object) -> None:
        keep(self, kind, **data)
        if kind == "finished":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Ledger, "event", event)
    assert train(load_config(attached, ["train.steps=1"]), resume=False, reporter=Quiet()).status == "finished"


class FullDisk(Quiet):
    """A reporter under which the run breaks, and nothing can be written any more."""

    def phase(self, text: str) -> None:
        if text == "starting engine and learner":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            raise RunError("what went wrong first")


def test_a_full_disk_does_not_hide_what_ended_the_run(config: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(RunError, match="what went wrong first"):
            train(load_config(config), resume=False, reporter=FullDisk())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


SLOW = """
import time
from pathlib import Path
from moonmill import reward
from moonmill.envs.library.calculator import Calculator

class Slow(Calculator):
    @reward(weight=0.0)
    def late(self, rollout):
        if rollout.task.split == "eval" and Path(__file__).with_name("slow").exists():
            time.sleep(60)
        return 0.0
"""


def test_ctrl_c_ends_evaluations_that_outlast_the_training_with_all_of_it_saved(attached: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "slow.py").write_text(SLOW)
    sets = [f"env.id={tmp_path / 'slow.py'}:Slow", "train.steps=3", "train.eval_every=1"]
    sets += ["eval={tasks: 4, temperatures: [1.0]}"]
    with start(attached, tmp_path, *(word for key in sets for word in ("--set", key))) as trainer:
        wait_for_steps(run, 1, trainer)
        (tmp_path / "slow").touch()
        wait_until((run / "checkpoints" / "step-000005").is_dir, "the last checkpoint", trainer)
        trainer.send_signal(signal.SIGINT)
        told, _ = trainer.communicate(timeout=30)
    assert trainer.returncode == 1
    assert "resume with" in told
    assert_accounted_for(run)


def test_evaluations_during_training_take_turns_and_are_of_the_version_they_name(
    moonmill: Cli, attached: Path, tmp_path: Path
) -> None:
    sets = ["--set", "train.eval_every=1", "--set", "eval={tasks: 32, temperatures: [1.0]}", "--set", "train.steps=6"]
    assert moonmill("train", attached, *sets).returncode == 0
    results = [e.data["result"] for e in events(tmp_path / "run", "eval")]
    during = [r for r in results if r["label"].startswith("step")]
    assert during
    assert all(r["label"] == f"step {r['version']}" for r in during)
    versions = [r["version"] for r in during]
    assert versions == sorted({*versions})
    assert versions[0] >= 1
