"""`moonmill compare`: what it says before it trains, and of runs that have finished."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from moonmill.cli.app import cli
from moonmill.config import Config
from moonmill.config_io import load_config
from moonmill.reporting import EvalResult
from moonmill.rundir import RunDirectory
from moonmill.trainer.compared import Comparison
from moonmill.trainer.comparing import arms_of, plan
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.meter import Spans, Waits
from moonmill.trainer.records import StepRecord

POLICY = Path(__file__).parents[2] / "examples" / "calculator" / "policy"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(
        f"env: {{id: calculator-v0}}\nmodel: {{path: {POLICY}, max_length: 256}}\nalgorithm: {{preset: grpo}}\n"
        "learner: {batch_rollouts: 16}\ntrain: {steps: 4}\n"
    )
    return path


def compare(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["compare", *map(str, arguments)])


def finish(config: Config, reward: float) -> None:
    """A run as it would have been left, with this reward in each of its steps."""
    run = RunDirectory.create(Path(config.run_dir), config)
    ledger = Ledger(run)
    ledger.event("started")
    speed = 2.0 if config.async_.mode == "sync" else 1.0
    for step in range(1, config.train.steps + 1):
        ledger.step(
            StepRecord(
                step,
                step,
                tuple(f"{step}-{i}" for i in range(16)),
                staleness=(0,) * 16,
                reward=reward,
                tokens=1600,
                spans=Spans(speed, speed, 0.0, 0.0),
                waits=Waits(rollouts=speed / 2, tools=speed / 4),
            )
        )
    ledger.event("eval", result=EvalResult("after", 4, 1.0, 8, reward, 0.0, 1.0, reward))
    ledger.event("finished")
    ledger.close()
    run.unlock()


@pytest.fixture
def compared(config: Path, tmp_path: Path) -> Path:
    """The folder of a comparison of both modes with two seeds, all of it done."""
    out = tmp_path / "out"
    base = load_config(config)
    for job in plan(lambda own: load_config(config, own), arms_of(None, ()), 2, out):
        assert job.config.train.steps == base.train.steps
        finish(job.config, 0.25 + 0.5 * job.seed)
    return out


def test_finished_runs_are_not_trained_again_and_give_a_table_and_a_picture(config: Path, compared: Path) -> None:
    result = compare(config, "--seeds", 2, "--out", compared)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("has finished before") == 4
    assert "2.00 ± 0.00×" in result.stdout
    # Two values, 0.25 and 0.75: t(1) = 12.706 times the standard error of 0.25 leads beyond what a share can be.
    assert "50.0% (0.0% to 100.0%)" in result.stdout
    assert "more than sync, seed by seed" in result.stdout
    assert "+0.000 ± 0.000" in result.stdout
    assert "reward at the end: mean over the last tenth of the steps" in result.stdout
    assert "of fewer than 4 seeds an interval is wide" in result.stdout
    assert (compared / "compare.png").read_bytes().startswith(b"\x89PNG")
    kept = msgspec.json.decode((compared / "compare.json").read_bytes(), type=Comparison)
    assert [(arm.name, arm.finished) for arm in kept.arms] == [("sync", 2), ("async", 2)]
    assert kept.rollouts == 64
    assert kept.arms[0].figures["rollouts/s"].mean == 8.0
    assert kept.arms[0].waits["learner waits for rollouts"].mean == 4.0


def test_json_is_all_that_stdout_gets(config: Path, compared: Path) -> None:
    result = compare(config, "--seeds", 2, "--out", compared, "--json")
    told = msgspec.json.decode(result.stdout, type=Comparison)
    assert len(told.runs) == 4
    assert told.runs[0].curve.rollouts == (16.0, 32.0, 48.0, 64.0)


def test_a_run_that_was_trained_with_other_values_is_not_compared(config: Path, compared: Path) -> None:
    result = compare(config, "--seeds", 2, "--out", compared, "--set", "learner.lr=1e-3")
    assert result.exit_code == 2
    assert "sync-seed0 was trained with other values" in result.stderr
    assert "learner.lr: 1e-06 then, 0.001 now" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--modes", "sync,fast"], "'fast' is not one of sync, async"),
        (["--vary", "x:learner.rate=1"], "learner.rate"),
        (
            ["--vary", "x:async.filters.success_rate={min: 0.1}"],
            "x: async.filters.success_rate: is for single rollouts",
        ),
        (["--vary", "x:engine.type=vllm"], "x: model.lora: is null"),
        (
            ["--vary", "x:algorithm={preset: grpo, critic: {}}"],
            "leave critic out (with --set or --vary: algorithm.critic=null)",
        ),
        (["--seeds", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_compared_is_told_before_anything_is_trained(
    config: Path, tmp_path: Path, arguments: list[str], why: str
) -> None:
    result = compare(config, *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert why in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
