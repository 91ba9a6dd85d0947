"""A supervisor as a child process of ours, and the stream to it."""

import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
from anyio.abc import UNIXSocketStream

from moonmill.sandboxes.alongside import alongside
from moonmill.sandboxes.errors import SandboxUnavailableError
from moonmill.sandboxes.link import ByteStream
from moonmill.sandboxes.sockets import SocketStream, keep_from_forks

_KILL_SECONDS = 5.0
_LAST_WORDS = 2000


class Child:
    """A process that serves a stream on its stdin and stdout."""

    def __init__(self, stream: ByteStream, stderr: IO[bytes]) -> None:
        self.stream = stream
        self._stderr = stderr

    def last_words(self) -> str:
        """The end of what it has said on stderr."""
        size = os.fstat(self._stderr.fileno()).st_size
        begin = max(0, size - _LAST_WORDS)
        return os.pread(self._stderr.fileno(), _LAST_WORDS, begin).decode("utf-8", "replace").strip()


@asynccontextmanager
async def child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    end_seconds: float,
    cwd: str = "/",
    pass_fds: Collection[int] = (),
) -> AsyncIterator[Child]:
    """Start a process, and end it.

    It is told to end by the end of its stream, which also comes when we are killed; if it does not, it is killed.

    Args:
        argv: the command.
        env: its environment.
        end_seconds: from its stream's end to its own, and that of all below it; then it is killed.
        cwd: where it runs.
        pass_fds: descriptors that it gets.

    Raises:
        SandboxUnavailableError: it cannot be started.
    """
    try:
        stderr = os.fdopen(os.memfd_create("stderr"), "w+b", buffering=0)
        ours, theirs = socket.socketpair()
    except OSError as e:
        raise SandboxUnavailableError(f"{argv[0]} cannot be started: {e.strerror} (ulimit -n)") from e
    keep_from_forks(ours)
    with ours, theirs, stderr:
        # Shielded: cancelled half-way, it would leave behind a process that nobody knows of. It takes milliseconds.
        with anyio.CancelScope(shield=True):
            start = partial(_start, argv, env, cwd, pass_fds, theirs.fileno(), stderr.fileno())
            process, handle = await anyio.to_thread.run_sync(start)
        try:
            theirs.close()
            stream = SocketStream(await UNIXSocketStream.from_socket(ours))
            try:
                async with alongside(partial(_follow, process, handle)):
                    yield Child(stream, stderr)
            finally:
                await stream.aclose()
        finally:
            ours.close()
            with anyio.CancelScope(shield=True):
                await _end(process, handle, end_seconds)
            os.close(handle)


def _start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    pass_fds: Collection[int],
    stream: int,
    stderr: int,
) -> "tuple[subprocess.Popen[bytes], int]":
    """The process, and a descriptor that tells of its end."""
    process = None
    try:
        process = subprocess.Popen(
            [*argv],
            stdin=stream,
            stdout=stream,
            stderr=stderr,
            env=dict(env),
            cwd=cwd,
            pass_fds=[*pass_fds],
            start_new_session=True,
        )
        return process, os.pidfd_open(process.pid)
    except OSError as e:
        if process is not None:
            _kill(process)
            process.wait()
        raise SandboxUnavailableError(f"{argv[0]} cannot be started: {e.strerror}") from e


async def _follow(process: "subprocess.Popen[bytes]", handle: int) -> None:
    """Wait for its end. What is left of a set-up that was killed would wait for it for ever, and its stream not end."""
    await anyio.wait_readable(handle)
    if _was_killed(handle):
        await anyio.to_thread.run_sync(_kill_session, process.pid)


async def _end(process: "subprocess.Popen[bytes]", handle: int, end_seconds: float) -> None:
    """Wait for its end; a kernel that can tell it does."""
    for seconds in (end_seconds, _KILL_SECONDS):
        with anyio.move_on_after(seconds):
            await _follow(process, handle)
            break
        _kill(process)
    process.poll()


def _was_killed(handle: int) -> bool:
    """Whether a process that has ended was ended by a signal. It is not reaped by that: its number stays taken."""
    ended = os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    return ended is not None and ended.si_code != os.CLD_EXITED


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill it and what it has started: the first process of a namespace does not end with who made that."""
    try:
        below = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except OSError:  # it has just ended, or the kernel does not tell
        below = []
    for pid in (*map(int, below), process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_session(leader: int) -> None:
    """Kill what is left of a session. A sandbox that has been set up has one of its own."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            _, _, _, session, *_ = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            if int(session) == leader:
                os.kill(int(name), signal.SIGKILL)
