"""Evaluations: beside training, where one has slots of its own, takes few of training's rollouts and gets on itself;
and by `moonmill eval`, whose figures hang from no chance but its own."""

import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

from moonmill.agents.processes import ServerProcess
from moonmill.config_io import load_config
from moonmill.jsonl import read_jsonl
from moonmill.reporting import EvalResult, StepLine
from moonmill.trainer.eval_compare import EvalComparison
from moonmill.trainer.run import train
from moonmill.types import Rollout
from tests.integration.conftest import POLICY, ROOT, assert_accounted_for, wait_until

WAITING = """
import time
from moonmill import Message, MultiTurnEnv, Task, reward

class Waiting(MultiTurnEnv):
    "Three turns, and a quarter of a second after each but the last: slots are what is scarce."

    reward_bounds = (0.0, 1.0)
    turn = 0

    def tasks(self, split):
        rng = self.task_rng(split)
        while True:
            yield Task(f"{rng.randint(10, 999)}+{rng.randint(10, 999)}")

    def step(self, action):
        super().step(action)
        self.turn += 1
        if self.turn == 3:
            return (), 0.0, True, False, {}
        time.sleep(0.25)
        return (Message("user", "12"),), 0.0, False, False, {}

    @reward
    def by_chance(self, rollout):
        return float(self.rng.random() < 0.5)
"""
ECHO = """
from moonmill import MultiTurnEnv, Task, reward

class Echo(MultiTurnEnv):
    "Three tasks, and something to score that has no answer to two of them."

    max_turns = 1

    def tasks(self, split):
        yield from (Task(f"{number}+{number}", id=f"{number}") for number in range(3))

    @reward
    def judged(self, rollout):
        if self.task.id == "1":
            raise ValueError("no idea")
        return None if self.task.id == "2" else 0.5
"""
BOUND = 0.6
"""So much at least of the rollouts a second without an evaluation is left beside one. Were the 16 slots of training
shared with the 8 of the evaluation, two thirds would be left at the most."""
TASKS, BESIDE = 32, 8


class Timed:
    """A reporter that notes when steps are done, and evaluations begin and end."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.begun: list[float] = []
        self.ended: list[float] = []

    def phase(self, text: str) -> None:
        if text.startswith("evaluating (step"):
            self.begun.append(time.monotonic())

    def step(self, line: StepLine) -> None:
        self.steps.append(time.monotonic())

    def eval(self, result: EvalResult) -> None:
        if result.label.startswith("step"):
            assert result.samples == TASKS
            self.ended.append(time.monotonic())

    def warn(self, text: str) -> None:
        assert "an evaluation came to nothing" not in text


def test_training_and_evaluation_do_not_starve_each_other(config: Path, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    sets = [f"env.id={tmp_path / 'waiting.py'}:Waiting", "train={steps: 48, eval_every: 12, checkpoint_every: 100}"]
    sets += [f"eval={{tasks: {TASKS}, temperatures: [1.0], max_concurrent: {BESIDE}}}", "async.max_staleness=4"]
    told = Timed()
    train(load_config(config, sets), resume=False, reporter=told)
    assert_accounted_for(tmp_path / "run")
    evaluations = list(zip(told.begun, told.ended, strict=True))
    assert len(evaluations) >= 2
    beside, alone = [], []
    for before, after in zip(told.steps[4:], told.steps[5:], strict=False):
        middle = (before + after) / 2
        (beside if any(begin < middle < end for begin, end in evaluations) else alone).append(after - before)
    share = fmean(alone) / fmean(beside)
    print(f"{share:.2f} of the rollouts/s beside an evaluation; steps beside {len(beside)}, alone {len(alone)}")
    assert min(len(beside), len(alone)) >= 5
    assert share > BOUND
    # Were it to get only what training leaves, an evaluation would last until training ends.
    assert evaluations[0][1] < told.steps[-1]
    per_second = [TASKS / (end - begin) for begin, end in evaluations]
    training = 8 / fmean(alone)
    assert min(per_second) > 0.25 * training * BESIDE / 16


class Evaluations:
    """Evaluations of the starter policy: one that ran through, one that was killed and gone on with, one by an API."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        (folder / "policy").symlink_to(POLICY)

    def start(self, out: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "moonmill", "eval", "calculator-v0", "--tasks", "12", "--samples", "2"]
        command += ["--temperature", "0", "--set", "sampling.max_tokens=32", "--out", out, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, stdout=pipe, stderr=pipe, text=True)

    def run(self, out: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        with self.start(out, *arguments) as process:
            told = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, *told)

    def rollouts(self, out: str) -> dict[int, Rollout]:
        return {r.index: r for r in read_jsonl(self.folder / out / "rollouts.jsonl", Rollout)}

    @property
    def attached(self) -> tuple[str, ...]:
        """On an engine that runs already, for a start takes seconds."""
        return ("--set", f"engine.urls=[{self.url}]", "--set", "model.max_length=256")

    @property
    def policy(self) -> tuple[str, ...]:
        return ("--model", "policy", *self.attached)


@pytest.fixture(scope="module")
def evaluations(engine: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Evaluations:
    return Evaluations(tmp_path_factory.mktemp("evaluations"), engine.base_url)


@pytest.fixture(scope="module")
def whole(evaluations: Evaluations) -> list[EvalResult]:
    """Played one after another."""
    done = evaluations.run("whole", *evaluations.policy, "--set", "async.max_concurrent=1", "--json")
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=list[EvalResult])


def test_an_attached_engine_that_serves_another_folder_is_told(evaluations: Evaluations) -> None:
    other = shutil.copytree(POLICY, evaluations.folder / "other")
    done = evaluations.run("elsewhere", "--model", "other", *evaluations.attached)
    assert done.returncode == 0, done.stderr
    told = f"{evaluations.url} serves {POLICY}, and not {other}: the figures are those of the former"
    assert told in done.stderr
    same = evaluations.run("here", *evaluations.policy)
    assert "the figures are those of" not in same.stderr


def test_an_evaluation_tells_its_figures_and_keeps_its_rollouts(
    evaluations: Evaluations, whole: list[EvalResult]
) -> None:
    [result] = whole
    assert (result.label, result.samples, result.failed) == ("calculator-v0", 24, 0)
    assert 0.3 < result.success < 0.9
    assert result.pass_at["pass@2"].value >= result.success
    assert set(result.by_level) == {"1", "2", "3", "4"}
    rollouts = evaluations.rollouts("whole")
    assert sorted(rollouts) == list(range(24))
    assert result.usage is not None
    assert result.usage.completion == sum(r.action_tokens for r in rollouts.values())
    kept = (evaluations.folder / "whole" / "results.json").read_bytes()
    assert msgspec.json.decode(kept, type=list[EvalResult]) == whole


def test_neither_a_kill_nor_concurrency_changes_what_comes_out(
    evaluations: Evaluations, whole: list[EvalResult]
) -> None:
    log = evaluations.folder / "killed" / "rollouts.jsonl"
    with evaluations.start("killed", *evaluations.policy, "--set", "async.max_concurrent=4") as process:
        wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") >= 8, "eight rollouts", process)
        process.kill()
    before = log.read_bytes()
    log.write_bytes(before + b'{"id": "torn')
    done = evaluations.run("killed", *evaluations.policy, "--set", "async.max_concurrent=16", "--json")
    assert done.returncode == 0, done.stderr
    assert "of 24 rollouts are there already" in done.stderr
    assert log.read_bytes().startswith(before)
    assert log.read_bytes().count(b"\n") == 24
    assert msgspec.json.decode(done.stdout, type=list[EvalResult]) == whole


def test_a_changed_setting_is_refused_with_what_has_changed(evaluations: Evaluations, whole: list[EvalResult]) -> None:
    done = evaluations.run("whole", *evaluations.policy, "--samples", "3", "--set", "train.seed=1")
    assert done.returncode == 2
    assert "samples: 2 then, 3 now" in done.stderr
    assert "seed: 0 then, 1 now" in done.stderr


def test_an_api_plays_the_same_and_two_evaluations_are_compared_task_by_task(
    evaluations: Evaluations, whole: list[EvalResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_KEY_AT_ALL", "sesame")
    api = ("--api", f"{evaluations.url}/v1", "--model", "policy-v0", "--api-key-env", "NO_KEY_AT_ALL")
    (evaluations.folder / "echo.py").write_text(ECHO)
    played = evaluations.run("api", "echo.py:Echo", *api, "--prices", "1", "2", "--json")
    assert played.returncode == 0, played.stderr
    result, echo = msgspec.json.decode(played.stdout, type=list[EvalResult])
    assert result.success == whole[0].success
    assert result.usage is not None
    assert (echo.samples, echo.failed, echo.mean_reward) == (8, 16, 0.5)
    assert {failure.reason: failure.count for failure in echo.failures} == {"scoring_error": 8, "unscored": 8}
    assert result.cost == (result.usage.prompt + 2 * result.usage.completion) / 1e6
    assert not any(b"sesame" in file.read_bytes() for file in (evaluations.folder / "api").iterdir())
    command = [sys.executable, "-m", "moonmill", "eval", "--compare", "whole", "api", "--json"]
    done = subprocess.run(command, cwd=evaluations.folder, capture_output=True, text=True, timeout=60, check=True)
    compared = msgspec.json.decode(done.stdout, type=EvalComparison)
    [contrast] = compared.contrasts
    assert (contrast.tasks, contrast.only_a, contrast.only_b) == (12, (), ())
    assert (contrast.success.difference.value, contrast.success.p) == (0.0, 1.0)
    assert compared.settings["player.model"] == (None, "policy-v0")


def test_the_page_about_evaluation_does_what_it_says(evaluations: Evaluations, tmp_path: Path) -> None:
    """Its commands on fewer tasks, but for those that need a run, a key, or a model of 135M parameters."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = (ROOT / "docs" / "evaluation.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    commands = [line for block in blocks for line in block.replace("\\\n", "").splitlines() if "evals/" in line]
    runnable = [command for command in commands if "https:" not in command and "smollm2" not in command]
    assert len(runnable) == 5
    for command in runnable:
        more = "" if "--compare" in command else " " + shlex.join([*evaluations.attached, "--tasks", "8"])
        line = f"{sys.executable} -m {command}{more}"
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert re.search(r"^calculator-v0  1 and 0      8  success ", done.stdout, re.MULTILINE), done.stdout
