"""The launcher where vLLM never comes to serve. What stands for vLLM here only fails, or hangs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moonmill.agents.engine import vllm_server
from moonmill.agents.engine.vllm_command import VllmOptions

Fake = Callable[[str], str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """An interpreter that seems to have vLLM, and whose vLLM does what it is told."""

    def make(server: str) -> str:
        path = tmp_path / "python"
        path.write_text(f'#!/bin/bash\ncase "$*" in *find_spec*) echo True;; *) {server}\nesac\n')
        path.chmod(0o755)
        return str(path)

    return make


def argv(python: str, model: Path, *more: str) -> list[str]:
    launcher = [sys.executable, "-P", "-m", "moonmill.agents.engine.vllm", "--python", python, "--model", str(model)]
    return [*launcher, "--port", "0", *more]


def launch(python: str, model: Path, *more: str) -> tuple[int, str, str]:
    """How it ended, the last line it said, and what was on stdout."""
    ended = subprocess.run(
        argv(python, model, *more), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    return ended.returncode, ended.stderr.splitlines()[-1], ended.stdout


def test_an_end_that_will_not_mend_itself_is_2_and_one_line(fake: Fake, model: Path) -> None:
    python = fake("echo 'Traceback'; echo 'RuntimeError: Cannot find any model weights with `x`'; exit 1;;")
    code, said, _ = launch(python, model)
    assert (code, said) == (2, f"error: the model folder {model} has no weights")


def test_any_other_end_is_1_with_the_cause_and_the_logs_path(fake: Fake, model: Path, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    code, said, _ = launch(fake("echo 'OddError: nobody knows'; exit 7;;"), model, "--log", str(log))
    assert (code, said) == (1, f"error: vLLM ended: OddError: nobody knows (its log: {log})")
    assert log.read_text() == "OddError: nobody knows\n"


def test_the_first_of_thousands_of_errors_is_told(fake: Fake, model: Path) -> None:
    first = "(Worker pid=1) ERROR 11-30 04:02:36 [multiproc_executor.py:1063] RuntimeError: no way back"
    after = "(APIServer pid=2) ERROR 11-30 04:02:36 [core.py:9] EngineDeadError: EngineCore encountered an issue."
    code, said, _ = launch(fake(f"echo '{first}'; for i in {{1..9000}}; do echo '{after}'; done; exit 1;;"), model)
    assert (code, said) == (1, "error: vLLM ended: RuntimeError: no way back")


def test_a_kill_is_told(fake: Fake, model: Path) -> None:
    code, said, _ = launch(fake("kill -9 $$;;"), model)
    assert (code, said) == (1, "error: a process of vLLM was killed; most often that is the system, out of memory")


def test_its_phases_are_told_as_they_come(fake: Fake, model: Path) -> None:
    python = fake("echo 'moonmill: importing vLLM 9'; sleep 0.5; printf 'Starting to load model\\r'; sleep 0.5;;")
    lines = [json.loads(line)["progress"] for line in launch(python, model)[2].splitlines()]
    phases = [line.removeprefix("vLLM: ").rpartition(" (")[0] for line in lines]
    assert phases[-2:] == ["importing vLLM 9", "loading weights"]


@pytest.mark.parametrize("how", ["SIGTERM", "stdin", "SIGKILL"])
def test_a_server_that_hangs_ends_with_the_launcher(fake: Fake, model: Path, tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    hanging = f"trap '' TERM; sleep 60 & echo $$ $! > {pids}; wait; sleep 60;;"
    command = argv(fake(hanging), model, "--exit-with-stdin")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as it:
        try:
            server, child = map(int, written(pids).split())
            assert it.stdin
            if how == "stdin":
                it.stdin.close()
            else:
                it.send_signal(signal.Signals[how])
            assert it.wait(20) == (-9 if how == "SIGKILL" else 0)
            if how == "SIGTERM":
                assert not runs(server)
                assert not runs(child)
        finally:
            for pid in map(int, pids.read_text().split()):
                if runs(pid):
                    os.kill(pid, signal.SIGKILL)


def test_a_server_is_ended_where_the_signal_came_while_it_was_being_started(
    fake: Fake, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **kwargs: Any) -> "subprocess.Popen[bytes]":
        begun.append(subprocess.Popen(*args, **kwargs))
        signal.raise_signal(signal.SIGTERM)
        return begun[0]

    def stop(number: int, frame: object) -> None:
        raise SystemExit(0)

    options = VllmOptions(python=fake("sleep 60;;"), model=str(model), served_name="m", host="127.0.0.1", port=1)
    monkeypatch.setattr(vllm_server, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": popen}))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(SystemExit), (tmp_path / "log").open("wb") as log, vllm_server.VllmServer(options, log):
            pass
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert begun[0].returncode == -signal.SIGTERM


def test_what_it_is_given_is_looked_at_first(fake: Fake, model: Path, tmp_path: Path) -> None:
    python = fake("exit 9;;")
    code, said, _ = launch("/no/python", model)
    assert code == 2
    assert said.startswith("error: there is no Python interpreter /no/python: install vLLM with `moonmill engine")
    assert launch(python, tmp_path / "none")[:2] == (2, f"error: the model folder {tmp_path / 'none'} does not exist")
    code, said, _ = launch(python, model, "--arg", "port=3")
    assert (code, said) == (2, "error: engine.vllm.args: port cannot be set here: set engine.port")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said, _ = launch(python, model, "--port", str(port))
    assert code == 2
    assert said == (
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another port (0 takes any)"
    )


def written(path: Path) -> str:
    for _ in range(400):
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text
        time.sleep(0.05)
    raise AssertionError(f"{path} was not written")


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
