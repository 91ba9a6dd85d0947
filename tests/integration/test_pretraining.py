"""A critic that is trained beforehand: by a run that ends there, killed and resumed, and taken up by another."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file

from moonmill.trainer.critic_folder import CriticDescription
from tests.integration.conftest import (
    Cli,
    as_json,
    assert_accounted_for,
    events,
    steps,
    wait_for_steps,
    wait_until,
)

ADAPTED = (
    "--set",
    "algorithm.critic={lr: 5.0e-3, warmup_steps: 2, lora: {r: 4}, pretrain: {max_steps: 30, window: 3, patience: 3}}",
    "--set",
    "model.lora={r: 4}",
)


def ready(run: Path) -> list[float]:
    return [s.metrics["critic_ready"] for s in steps(run)]


def test_it_is_killed_resumed_written_and_taken_up(attached: Path, tmp_path: Path, moonmill: Cli) -> None:
    run, folder = tmp_path / "run-critic", tmp_path / "run-critic" / "critic"
    command = [sys.executable, "-m", "moonmill", "pretrain-critic", str(attached), *ADAPTED]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as trainer:
        wait_until(run.exists, "the run directory", trainer)
        wait_for_steps(run, 3, trainer)
        trainer.kill()
    assert not folder.exists()
    resumed = moonmill("pretrain-critic", attached, *ADAPTED, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    summary = as_json(resumed)
    assert isinstance(summary, dict)
    assert (summary["status"], summary["version"]) == ("finished", 0)
    done = len(steps(run))
    assert 6 <= done <= 30
    assert [s.step for s in steps(run)] == list(range(1, done + 1))
    assert ready(run) == [0.0] * (done - 1) + [1.0]
    assert not events(run, "version_published")
    assert_accounted_for(run)

    description = msgspec.json.decode((folder / "critic.json").read_bytes(), type=CriticDescription)
    assert (description.steps, description.rollouts) == (done, 8 * done)
    assert description.lora is not None
    assert "head.weight" in load_file(folder / "critic.safetensors")
    again = moonmill("pretrain-critic", attached, *ADAPTED, "--resume")
    assert again.returncode == 2
    assert f"--out: {folder} is there already" in again.stderr

    begun = ("--set", f"algorithm.critic.path={folder}", "--set", "algorithm.critic.warmup_steps=0")
    trained = moonmill(
        "train", attached, *ADAPTED, *begun, "--set", "algorithm.critic.pretrain=null", "--set", "train.steps=2"
    )
    assert trained.returncode == 0, trained.stderr
    first = steps(tmp_path / "run")[0]
    assert first.version == 1
    # An untrained critic says 0 everywhere and explains nothing at all.
    assert first.metrics["explained_variance"] != pytest.approx(0, abs=1e-6)


def test_one_that_ended_before_it_was_written_is_written_on_resume(
    attached: Path, tmp_path: Path, moonmill: Cli
) -> None:
    fixed = ("--set", "algorithm.critic.warmup_steps=2", "--out", tmp_path / "given")
    first = moonmill("pretrain-critic", attached, *fixed)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == f"wrote {tmp_path / 'given'}: begin with it by algorithm.critic.path"
    before = (tmp_path / "given" / "critic.safetensors").read_bytes()
    (tmp_path / "given").rename(tmp_path / "lost")
    again = moonmill("pretrain-critic", attached, *fixed, "--resume")
    assert again.returncode == 0, again.stderr
    assert [s.step for s in steps(tmp_path / "run-critic")] == [1, 2]
    assert (tmp_path / "given" / "critic.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm={preset: grpo}", "grpo has no critic, so there is nothing to pre-train"),
        (
            "algorithm.critic.warmup_steps=0",
            "nothing says how long it is to be pre-trained: set algorithm.critic.pretrain",
        ),
        ("algorithm.critic.pretrain={max_steps: 1}", "max_steps: 1 is less than the least number of steps"),
        ("algorithm.critic.path=nowhere", "algorithm.critic.path: there is no folder nowhere"),
    ],
)
def test_what_cannot_be_pre_trained_is_refused(attached: Path, moonmill: Cli, override: str, words: str) -> None:
    refused = moonmill("pretrain-critic", attached, "--set", override)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
