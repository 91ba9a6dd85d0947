"""What cases say when something is not as it should be, and how they wait."""

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from moonmill.sandboxes.errors import ExecError, SandboxFileError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import BrokenPromiseError, NotShownError

PREFIX = "moonmill-check-"
"""What names begin with that the check gives to folders of the host."""
AT_ONCE = 5.0
"""Seconds that something may take that takes no time, on a host that is busy with other things."""
LONG = "600"
"""Seconds that a process sleeps which is to be ended before."""
_SHOWN = 300

_PROBE = """
import json, os, sys
given = json.loads(sys.stdin.buffer.read())
answer = None
{code}
sys.stdout.write(json.dumps(answer))
"""


def new_marker() -> str:
    """An argument of `sleep` that no other process has: much longer than anything waits for it."""
    return f"{LONG}.{secrets.randbelow(10**12):012d}"


def that(holds: bool, otherwise: str) -> None:
    """Raise `BrokenPromiseError` unless something holds."""
    if not holds:
        raise BrokenPromiseError(otherwise)


def equal(what: str, seen: object, wanted: object) -> None:
    """Raise `BrokenPromiseError` unless something is as it should be."""
    if seen != wanted:
        raise BrokenPromiseError(f"{what}: {shown(seen)} instead of {shown(wanted)}")


def shown(value: object) -> str:
    """A value in an error, not too long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


@contextmanager
def at_once(what: str, seconds: float = AT_ONCE) -> Iterator[None]:
    """What is inside takes no longer than this."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise BrokenPromiseError(f"{what} took longer than {seconds:g} s")


@contextmanager
def refused(error: type[Exception], what: str, *problems: str, seconds: float = AT_ONCE) -> Iterator[None]:
    """What is inside raises this error, and soon; a `SandboxFileError` with one of these problems, if any are named."""
    with at_once(what, seconds):
        try:
            yield
        except error as e:
            if problems and isinstance(e, SandboxFileError) and e.problem not in problems:
                wanted = " or ".join(problems)
                raise BrokenPromiseError(f"{what}: the problem is {e.problem!r} instead of {wanted} ({e})") from e
            return
        except Exception as e:
            raise BrokenPromiseError(f"{what}: {type(e).__name__} instead of {error.__name__}: {e}") from e
        raise BrokenPromiseError(f"{what}: there was no {error.__name__}")


async def until(holds: Callable[[], Awaitable[bool]], otherwise: str, seconds: float = AT_ONCE) -> None:
    """Wait until something holds; `BrokenPromiseError` where it takes longer."""
    give_up = time.monotonic() + seconds
    while not await holds():
        if time.monotonic() > give_up:
            raise BrokenPromiseError(f"{otherwise} after {seconds:g} s")
        await anyio.sleep(0.02)


async def probe(sandbox: Sandbox, code: str, *, timeout: float = AT_ONCE, **given: object) -> Any:  # noqa: ASYNC109
    """Run Python code inside, which finds `given` and leaves an `answer`; both are plain data. Returns the answer."""
    argv = ["python3", "-I", "-S", "-c", _PROBE.format(code=code.strip("\n"))]
    try:
        result = await sandbox.exec(argv, input=json.dumps(given), timeout=timeout)
    except ExecError as e:
        raise NotShownError(f"this case needs python3 inside: {e}") from e
    if result.returncode:
        raise BrokenPromiseError(f"a probe ended with {result.returncode}: {result.stderr.strip()[-_SHOWN:]}")
    return json.loads(result.stdout)


async def shell(sandbox: Sandbox, text: str, *, timeout: float = AT_ONCE) -> str:  # noqa: ASYNC109
    """What a shell command prints; it has to succeed."""
    result = await sandbox.exec(["sh", "-c", text], timeout=timeout)
    if result.returncode:
        raise BrokenPromiseError(f"`{text:.100}` ended with {result.returncode}: {result.stderr.strip()[-_SHOWN:]}")
    return result.stdout


async def remove(sandbox: Sandbox, folders: Iterable[object], *names: str) -> None:
    """Remove files inside, and folders that were made for the check: they may turn out to be the host's."""
    code = """
for folder in given["folders"]:
    for name in given["names"]:
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:
            pass
    try:
        os.rmdir(folder if given["ours"] in folder else "")
    except OSError:
        pass
"""
    await probe(sandbox, code, folders=[str(folder) for folder in folders], names=names, ours=PREFIX)


async def leave_running(sandbox: Sandbox, marker: str) -> int:
    """Leave a process in the background that has `marker` as an argument; returns its number."""
    await shell(sandbox, f"setsid sleep {marker} >/dev/null 2>&1 &")
    found: list[int] = []

    async def is_there() -> bool:
        found[:] = await running(sandbox, marker)
        return len(found) == 1

    await until(is_there, "what a command has left in the background is not there")
    return found[0]


async def running(sandbox: Sandbox, marker: str, *, kill: bool = False) -> list[int]:
    """The processes inside that have `marker` as an argument, which are killed if that is asked for."""
    code = """
answer = []
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if given["marker"].encode() in file.read().split(b"\\0"):
                    answer.append(int(name))
                    if given["kill"]:
                        os.kill(int(name), 9)
        except OSError:
            pass
"""
    pids: list[int] = await probe(sandbox, code, marker=marker, kill=kill)
    return pids


async def gone(sandbox: Sandbox, marker: str, what: str, seconds: float = 2.0) -> None:
    """Wait until no process inside has `marker` as an argument."""

    async def none_is_left() -> bool:
        return not await running(sandbox, marker)

    await until(none_is_left, f"{what} still runs", seconds)
