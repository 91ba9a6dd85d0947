"""A command that runs into its time-out is gone with all it has started, and with nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from moonmill.sandboxes.errors import ExecTimeoutError, SandboxUnavailableError
from moonmill.sandboxes.sandbox import OUTPUT_LIMIT, Sandbox
from moonmill.sandboxes.testing.case import BrokenPromiseError, Topic
from moonmill.sandboxes.testing.expect import (
    at_once,
    equal,
    gone,
    leave_running,
    new_marker,
    refused,
    running,
    shell,
    that,
)
from moonmill.sandboxes.testing.lab import Lab
from moonmill.sandboxes.types import MIB, SandboxLimits

topic = Topic("time-outs")
_SOON = 0.4
"""Seconds: enough to start what is to be ended."""
_OUR_MEMORY = 64 * MIB
"""By so much our own process may grow while a command floods it."""

_DETACHED = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
time.sleep(600)
"""
_HEADLESS = """
import ctypes, os, sys, threading, time

def beat():
    while True:
        with open(sys.argv[1], "a") as file:
            file.write("x")
        time.sleep(0.01)

threading.Thread(target=beat).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit, of this thread alone
"""
_RUNNING_AWAY = """
import os, time
if os.fork():
    time.sleep(600)
while True:
    time.sleep(0.0005)
    if os.fork():
        os._exit(0)
    if os.getpid() % 7 == 0:
        os.setsid()
"""


@topic.inside("it is a typed error with the output so far")
async def partial_output(sandbox: Sandbox) -> None:
    with _timing_out("a command that goes on") as raised:
        await sandbox.exec(["sh", "-c", "echo out; echo err >&2; sleep 60"], timeout=_SOON)
    error = raised[0]
    equal("stdout so far", error.stdout, "out\n")
    equal("stderr so far", error.stderr, "err\n")
    equal("the time-out", error.timeout, _SOON)
    that(not error.truncated, "a few bytes are flagged as truncated")
    equal("a command afterwards", await shell(sandbox, "echo usable"), "usable\n")


@topic.inside("a command that has ended by a signal in time has not timed out")
async def a_signal_is_no_time_out(sandbox: Sandbox) -> None:
    with at_once("a command that ends itself"):
        result = await sandbox.exec(["sh", "-c", "kill -TERM $$; sleep 60"], timeout=30)
    equal("the return code", result.returncode, 143)


@topic.inside("children, also those in the background, are gone")
async def children(sandbox: Sandbox) -> None:
    marker = new_marker()
    with _timing_out("a command with children"):
        await sandbox.exec(["sh", "-c", f"sleep {marker} & (sleep {marker}; true); true"], timeout=_SOON)
    await gone(sandbox, marker, "a child")


@topic.inside("a grandchild with a session of its own that ignores SIGTERM, without an environment, is gone")
async def detached(sandbox: Sandbox) -> None:
    marker = new_marker()
    with _timing_out("a command with a detached grandchild"):
        await sandbox.exec(["python3", "-ISc", _DETACHED, marker], timeout=_SOON * 2)
    await gone(sandbox, marker, "a detached grandchild")


@topic.inside("a process whose first thread has ended is gone, as a command and as a child of one")
async def without_a_first_thread(sandbox: Sandbox) -> None:
    name = f"beats-{new_marker()}"
    for text in ('exec python3 -Sc "$0" "$1"', 'python3 -Sc "$0" "$1" & sleep 60'):
        with _timing_out("a command without a first thread"), at_once("its end", 8):
            await sandbox.exec(["sh", "-c", text, _HEADLESS, name], timeout=1.5)
        size = len(await sandbox.read_file(name))
        that(size > 0, "its other thread has not begun")
        await anyio.sleep(0.2)
        equal("what its other thread has written since", len(await sandbox.read_file(name)) - size, 0)


@topic.inside("what a command has left in the background goes on when a later one times out")
async def of_an_earlier_command(sandbox: Sandbox) -> None:
    marker = new_marker()
    pid = await leave_running(sandbox, marker)
    with _timing_out("another command"):
        await sandbox.exec(["sh", "-c", "setsid sleep 60 & sleep 60"], timeout=_SOON)
    equal("what an earlier command has left running", await running(sandbox, marker, kill=True), [pid])


@topic.inside("what runs beside it goes on when a command times out")
async def beside_another(sandbox: Sandbox) -> None:
    async def time_out() -> None:
        with _timing_out("another command"):
            await sandbox.exec(["sh", "-c", "setsid sleep 60 & sleep 60"], timeout=_SOON)

    async with anyio.create_task_group() as group:
        group.start_soon(time_out)
        result = await sandbox.exec(["sh", "-c", "(sleep 1.2; echo from a child); echo end"], timeout=30)
    equal("the one beside it", (result.stdout, result.returncode), ("from a child\nend\n", 0))


@topic.inside("processes that keep forking away are gone")
async def running_away(sandbox: Sandbox) -> None:
    marker = new_marker()
    with _timing_out("a command that keeps forking"):
        await sandbox.exec(["python3", "-ISc", _RUNNING_AWAY, marker], timeout=_SOON * 2)
    await gone(sandbox, marker, "a process that keeps forking")


@topic.inside("a child that holds on to stdout does not delay it")
async def held_output(sandbox: Sandbox) -> None:
    marker = new_marker()
    with _timing_out("a command whose child holds on to stdout"):
        await sandbox.exec(["sh", "-c", f"setsid sleep {marker} & sleep 60"], timeout=_SOON)
    await gone(sandbox, marker, "a child that holds on to stdout")


@topic.inside("a process that is stopped is gone")
async def stopped(sandbox: Sandbox) -> None:
    marker = new_marker()
    with _timing_out("a command that stops itself"):
        await sandbox.exec(["sh", "-c", f"sleep {marker} & kill -STOP $! $$"], timeout=_SOON)
    await gone(sandbox, marker, "a stopped process")


@topic.inside("endless output costs no memory, and is cut and flagged")
async def endless_output(sandbox: Sandbox) -> None:
    before = _our_memory()
    with _timing_out("`yes`") as raised:
        await sandbox.exec(["sh", "-c", "yes >&2 & yes"], timeout=2)
    grown = _our_memory() - before
    error = raised[0]
    equal("what is kept", (len(error.stdout_bytes), len(error.stderr_bytes)), (OUTPUT_LIMIT, OUTPUT_LIMIT))
    that(error.truncated, "cut output is not flagged")
    that(grown < _OUR_MEMORY, f"our process grew by {grown / MIB:.0f} MiB")


@topic.around("a sandbox ends with its lifetime, and says so")
async def lifetime(lab: Lab) -> None:
    async with lab.open(SandboxLimits(lifetime=1.0)) as sandbox:
        with refused(SandboxUnavailableError, "a command that outlives its sandbox", seconds=10):
            await sandbox.exec(["sleep", "60"], timeout=60)
        with refused(SandboxUnavailableError, "a command after that"):
            await sandbox.exec(["true"])


@contextmanager
def _timing_out(what: str) -> Iterator[list[ExecTimeoutError]]:
    """What is inside times out, no later than it should; the error is put into the list."""
    raised: list[ExecTimeoutError] = []
    with at_once(f"the time-out of {what}"):
        try:
            yield raised
        except ExecTimeoutError as e:
            raised.append(e)
    if not raised:
        raise BrokenPromiseError(f"{what} did not time out")


def _our_memory() -> int:
    """Bytes of our own process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
