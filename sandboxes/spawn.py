"""A supervisor as a child process of ours, and the stream to it."""

import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
from anyio.abc import SocketAttribute, UNIXSocketStream

from moonmill.sandboxes.errors import SandboxUnavailableError
from moonmill.sandboxes.inside.frames import CHUNK
from moonmill.sandboxes.link import ByteStream

_KILL_SECONDS = 5.0
_LAST_WORDS = 2000


class SocketStream:
    """A byte stream over a socket of ours."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        """What has come; empty at the end."""
        try:
            return await self._stream.receive(2 * CHUNK)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as e:
            raise OSError(str(e) or "the stream is closed") from e

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as e:
            raise OSError(str(e) or "the stream is closed") from e

    async def aclose(self) -> None:
        """Close it, also for a process that was forked from this one and holds it too."""
        with suppress(OSError):
            self._stream.extra(SocketAttribute.raw_socket).shutdown(socket.SHUT_RDWR)
        await self._stream.aclose()


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
    with ours, theirs, stderr:
        # Shielded: cancelled half-way, it would leave behind a process that nobody knows of. It takes milliseconds.
        with anyio.CancelScope(shield=True):
            process = await anyio.to_thread.run_sync(_start, argv, env, cwd, pass_fds, theirs.fileno(), stderr.fileno())
        try:
            theirs.close()
            async with await UNIXSocketStream.from_socket(ours) as stream:
                yield Child(SocketStream(stream), stderr)
        finally:
            ours.close()
            with anyio.CancelScope(shield=True):
                await _end(process, end_seconds)


def _start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    pass_fds: Collection[int],
    stream: int,
    stderr: int,
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            [*argv],
            stdin=stream,
            stdout=stream,
            stderr=stderr,
            env=dict(env),
            cwd=cwd,
            pass_fds=[*pass_fds],
            start_new_session=True,
        )
    except OSError as e:
        raise SandboxUnavailableError(f"{argv[0]} cannot be started: {e.strerror}") from e


async def _end(process: "subprocess.Popen[bytes]", end_seconds: float) -> None:
    """Wait for its end; a kernel that can tell it does."""
    handle = os.pidfd_open(process.pid)
    try:
        for seconds in (end_seconds, _KILL_SECONDS):
            with anyio.move_on_after(seconds):
                await anyio.wait_readable(handle)
                break
            _kill(process)
    finally:
        os.close(handle)
    process.poll()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill it and what it has started: the first process of a namespace does not end with who made that."""
    try:
        below = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except OSError:  # it has just ended, or the kernel does not tell
        below = []
    for pid in (*map(int, below), process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
