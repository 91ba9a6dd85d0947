"""What comes from the inside of a sandbox is read as from a stranger, and every wait for it has an end."""

import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from moonmill.sandboxes import SandboxFileError, SandboxUnavailableError, archives
from moonmill.sandboxes import link as link_module
from moonmill.sandboxes.inside import frames
from moonmill.sandboxes.supervised import Setup, SupervisedSandbox, supervised

pytestmark = pytest.mark.anyio
SETUP = Setup(workdir="/w", env={}, user=None, hide=False)


class Stranger:
    """A stream on which somebody who is no supervisor sends what a test wants."""

    def __init__(self) -> None:
        self.closed = False
        self._send, self._receive = anyio.create_memory_object_stream[bytes](100)

    def say(self, kind: int, number: int, payload: bytes = b"", length: int | None = None) -> None:
        head = frames.FRAME.pack(kind, number, len(payload) if length is None else length)
        self._send.send_nowait(head + payload)

    async def receive(self) -> bytes:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            return b""

    async def send(self, data: bytes) -> None:
        kind, number, _ = frames.FRAME.unpack_from(data)
        if kind == frames.SETUP:
            self.say(frames.READY, number)

    async def aclose(self) -> None:
        self.closed = True
        self._send.close()


@asynccontextmanager
async def opened(stranger: Stranger, lifetime: float = 60.0) -> AsyncIterator[SupervisedSandbox]:
    async with supervised(stranger, SETUP, {}, name="sandbox", lifetime=lifetime, ready_seconds=5) as sandbox:
        yield sandbox


EXITED = frames.ENDED.pack(0, 0, 0.1)


@pytest.mark.parametrize(
    ("kind", "number", "payload", "length", "why"),
    [
        (frames.STDOUT, 1, b"x" * 101, None, "more than 100 bytes of output"),
        (frames.STDOUT, 1, b"", 1 << 30, "a frame of 1073741824 bytes"),
        (frames.EXIT, 1, b"short", None, "5 bytes where"),
        (frames.EXIT, 77, EXITED, None, "a call 77, which there never was"),
        (99, 1, b"", None, "a frame of the kind 99"),
        (frames.TAKEN, 1, frames.TAKE.pack(1 << 20), None, "more input taken than was given"),
        (frames.REFUSED, 1, b"", None, "0 bytes where"),
        (frames.BROKEN, 0, b"processes could not be ended", None, "processes could not be ended"),
    ],
)
async def test_what_no_supervisor_sends_ends_the_sandbox(
    kind: int, number: int, payload: bytes, length: int | None, why: str
) -> None:
    stranger = Stranger()
    with anyio.fail_after(5):
        async with opened(stranger) as sandbox:
            stranger.say(kind, number, payload, length)
            with pytest.raises(SandboxUnavailableError, match=f"the sandbox is gone: .*{why}"):
                await sandbox.exec(["true"], output_limit=100)
            with pytest.raises(SandboxUnavailableError):
                await sandbox.read_file("a")
            assert stranger.closed, "nothing more is read from it"


async def test_a_list_of_files_that_is_none_is_an_error_of_the_folder() -> None:
    stranger = Stranger()
    async with opened(stranger) as sandbox:
        stranger.say(frames.STDOUT, 1, b"nonsense\0")
        stranger.say(frames.EXIT, 1, EXITED)
        with pytest.raises(SandboxFileError, match="meddled with its listing"):
            await sandbox.list_files()


async def test_the_end_of_the_stream_ends_all_calls_at_once() -> None:
    stranger, raised = Stranger(), list[Exception]()

    async def call(sandbox: SupervisedSandbox) -> None:
        try:
            await sandbox.exec(["sleep", "100"])
        except SandboxUnavailableError as e:
            raised.append(e)

    with anyio.fail_after(5):
        async with opened(stranger) as sandbox:
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(call, sandbox)
                await anyio.wait_all_tasks_blocked()
                await stranger.aclose()
            assert len(raised) == 3
            assert "its supervisor has ended" in sandbox.lost


async def test_a_supervisor_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_GRACE_SECONDS", 0.1)
    with anyio.fail_after(5):
        async with opened(Stranger()) as sandbox:
            with pytest.raises(SandboxUnavailableError, match=r"did not answer for 0\.1 s"):
                await sandbox.exec(["true"], timeout=0.1)


async def test_one_that_does_not_get_ready_is_given_up() -> None:
    class Silent(Stranger):
        async def send(self, data: bytes) -> None:
            pass

    silent = Silent()
    with anyio.fail_after(5), pytest.raises(SandboxUnavailableError, match=r"not ready in 0\.1 s"):
        async with supervised(silent, SETUP, {}, name="sandbox", lifetime=60, ready_seconds=0.1):
            pass
    assert silent.closed


async def test_a_lifetime_ends_it_under_a_call() -> None:
    with anyio.fail_after(5):
        async with opened(Stranger(), lifetime=0.2) as sandbox:
            with pytest.raises(SandboxUnavailableError, match=r"lifetime of 0\.2 s is over"):
                await sandbox.exec(["sleep", "100"])


async def test_what_is_raised_inside_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with opened(Stranger()):
            raise KeyError


@pytest.mark.parametrize("size", [frames.FRAME.size - 1, 1])
async def test_a_stream_that_ends_within_a_frame_is_an_end(size: int) -> None:
    stranger = Stranger()
    async with opened(stranger) as sandbox:
        stranger._send.send_nowait(struct.pack(f"{size}x"))
        await stranger.aclose()
        with pytest.raises(SandboxUnavailableError):
            await sandbox.exec(["true"])


class Answering(Stranger):
    """Says of everything that it is done."""

    async def send(self, data: bytes) -> None:
        await super().send(data)
        kind, number, _ = frames.FRAME.unpack_from(data)
        if kind == frames.START:
            self.say(frames.EXIT, number, EXITED)


async def test_folders_that_come_out_hold_nobody_up_and_end_when_they_are_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a stranger can keep a thread busy; other things wait for threads too, as the start of a sandbox does."""
    begun, ended = threading.Semaphore(0), list[bool]()

    def unpack(archive: bytes, path: str, target: Path, stop: threading.Event) -> None:
        begun.release()
        ended.append(stop.wait(20))

    monkeypatch.setattr(archives, "unpack", unpack)
    with anyio.fail_after(10):
        async with opened(Answering()) as sandbox, anyio.create_task_group() as group:
            for _ in range(60):
                group.start_soon(sandbox.download, ".", tmp_path)
            assert await anyio.to_thread.run_sync(begun.acquire, True, 5)
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(lambda: None)
            assert not ended
            group.cancel_scope.cancel()
    assert ended
    assert all(ended)
