"""`moonmill doctor`, with facts that are given: the probes have tests of their own."""

import json

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from moonmill.cli.app import cli
from moonmill.trainer.doctor import probes
from moonmill.trainer.doctor.facts import Facts
from tests.trainer.doctor.test_judgments import CPU


def doctor(facts: Facts, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setattr(probes, "probe", lambda: facts)
    return CliRunner().invoke(cli, ["doctor", *arguments])


def test_it_says_what_was_found_what_to_do_and_what_will_work(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(CPU, monkeypatch)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["ok", "PyTorch", "2.13.0+cpu,", "built", "for", "the", "CPU"] in lines
    assert ["missing", "sandboxes:", "docker"] in [line[:3] for line in lines]
    assert "Start it: sudo systemctl start docker" in result.stdout
    assert ["training,", "with", "the", "embedded", "engine,", "on", "the", "CPU", "yes"] in lines


def test_the_table_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = doctor(CPU, monkeypatch).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index(next(line for line in lines if "sandboxes: docker" in line))
    assert "→ Start it: sudo systemctl start docker" in "".join(lines[at : at + 4])


def test_where_nothing_can_be_trained_it_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(replace(CPU, torch=None), monkeypatch, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["can_train"] is False
    [torch] = [line for line in found["checks"] if line["name"] == "PyTorch"]
    assert torch == {
        "name": "PyTorch",
        "status": "missing",
        "found": "not installed",
        "todo": "pip install 'moonmill[train]'",
    }
    assert {"what": "sandboxes: local", "works": True, "why": ""} in found["works"]
