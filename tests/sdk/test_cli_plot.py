"""`moonmill plot` draws what the logs of a run say."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from moonmill.cli.app import cli
from moonmill.cli.plot import _PANELS, _value
from moonmill.config import Config, EnvConfig, ModelConfig
from moonmill.rundir import RunDirectory
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.records import StepRecord


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = RunDirectory.create(tmp_path / "run", Config(env=EnvConfig("e-v0"), model=ModelConfig("nowhere")))
    ledger = Ledger(directory)
    for step in range(1, 9):  # the first three train the critic alone
        metrics = {"entropy": 1 / step} if step > 3 else {}
        ledger.step(StepRecord(step, max(0, step - 3), ("0",), staleness=(1, 2), reward=step / 10, metrics=metrics))
    ledger.close()
    directory.unlock()
    return directory.path


def test_a_picture_of_several_runs_is_written(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.png"
    result = CliRunner().invoke(cli, ["plot", str(run), str(run), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")


def test_curves_are_drawn_over_steps_of_which_several_may_have_one_version(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.svg"
    assert CliRunner().invoke(cli, ["plot", str(run), "--out", str(out)]).exit_code == 0
    drawing = out.read_text()
    assert drawing.count("<!-- learner step -->") == 6
    assert "<!-- version -->" not in drawing


def test_a_step_that_goes_back_has_no_place_on_the_curves() -> None:
    back = StepRecord(9, 6, rolled_back_to=4)
    assert {name: _value(back, name) for name in _PANELS.values()} == dict.fromkeys(_PANELS.values())


def texts_of(run: Path, out: Path) -> list[str]:
    """The texts of the picture; panel by panel."""
    assert CliRunner().invoke(cli, ["plot", str(run), "--out", str(out)]).exit_code == 0
    return re.findall(r"<!-- (.*) -->", out.read_text())


def test_the_picture_says_that_every_curve_is_smoothed_and_where_the_warm_up_ends(run: Path, tmp_path: Path) -> None:
    texts = texts_of(run, tmp_path / "curves.svg")
    assert texts.count("each point is the mean of the last 5 steps") == 1
    assert texts.count("run: end of the critic's warm-up") == 1
    assert not any("(mean of" in text for text in texts)
    assert (tmp_path / "curves.svg").read_text().count("stroke-dasharray") == 6 + 1  # in the legend


def test_panels_share_their_steps_and_say_where_nothing_was_measured(run: Path, tmp_path: Path) -> None:
    texts = texts_of(run, tmp_path / "curves.svg")
    steps = [text for text in texts if text.isdigit()]
    assert steps == steps[: len(steps) // 6] * 6
    assert texts.count("not measured") == 2


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["plot", str(tmp_path)])
    assert result.exit_code == 2
    assert "not a run directory" in result.output


def test_a_format_that_cannot_be_written_is_told(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["plot", str(run), "--out", str(tmp_path / "curves.xyz")])
    assert result.exit_code == 1
    assert result.output.startswith("error: cannot write ")
    assert "xyz" in result.output
