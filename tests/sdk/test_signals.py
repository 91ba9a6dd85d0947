"""Ctrl-C and SIGTERM while a run begins and while the process ends, in processes of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import os, signal, sys
from moonmill.signals import ignore, interruptible

def send():
    os.kill(os.getpid(), int(sys.argv[1]))
"""


def run(script: str, number: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", HEAD + script, str(int(number))]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


both = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


BEGINNING = """
import os, signal, sys

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["DURING"]:
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

sys.meta_path.insert(0, Press())
"""


@both
@pytest.mark.parametrize("during", ["click", "msgspec", "moonmill.cli.app", "moonmill.cli.envs"])
def test_one_that_comes_while_the_command_line_is_imported_ends_it_in_a_word(
    number: int, during: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BEGINNING)
    ended = subprocess.run(
        [sys.executable, "-m", "moonmill", "envs", "list"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "DURING": during, "SIGNAL": str(int(number))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "stopped\n")


@both
def test_a_caught_one_leaves_the_exit_code_alone_also_when_it_came_during_an_import(number: int) -> None:
    script = """
try:
    with interruptible():
        exec("send()")
except KeyboardInterrupt:
    sys.exit(1)
"""
    ended = run(script, number)
    assert (ended.returncode, ended.stderr) == (1, "")


@both
def test_one_that_comes_while_the_interpreter_ends_changes_nothing(number: int) -> None:
    script = """
with interruptible():
    pass

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=int(sys.argv[1])):
        kill(pid, number)

late = Late()
sys.exit(1)
"""
    ended = run(script, number)
    assert (ended.returncode, ended.stderr) == (1, "")


@both
def test_what_was_there_before_is_put_back(number: int) -> None:
    script = """
was = signal.getsignal(int(sys.argv[1]))
with interruptible():
    ignore()
    send()
assert signal.getsignal(int(sys.argv[1])) == was
"""
    ended = run(script, number)
    assert (ended.returncode, ended.stderr) == (0, "")


@both
def test_asynchronous_work_ends_in_order_before_it_is_told(number: int) -> None:
    script = """
import anyio
from moonmill.signals import run_until_stopped

async def work():
    try:
        send()
        await anyio.sleep(30)
    finally:
        with anyio.CancelScope(shield=True):
            send()
            await anyio.sleep(0.05)
        print("closed")

with interruptible():
    assert run_until_stopped(anyio.lowlevel.checkpoint) is None
    try:
        run_until_stopped(work)
    except KeyboardInterrupt:
        print("stopped")
        sys.exit(1)
"""
    ended = run(script, number)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "closed\nstopped\n", "")


@both
def test_one_that_got_lost_is_told_all_the_same(number: int) -> None:
    script = """
from moonmill.signals import raise_if_asked

with interruptible():
    raise_if_asked()
    try:
        send()
    except BaseException:
        pass
    with interruptible():
        try:
            raise_if_asked()
        except KeyboardInterrupt:
            sys.exit(1)
"""
    assert run(script, number).returncode == 1
