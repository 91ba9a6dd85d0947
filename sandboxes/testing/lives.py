"""A process that holds a sandbox and ends, by itself or killed, and what is left of it then."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from moonmill.sandboxes.testing import holder
from moonmill.sandboxes.testing.case import BrokenPromiseError
from moonmill.sandboxes.testing.expect import PREFIX, new_marker
from moonmill.sandboxes.testing.traces import Traces, marked_processes, traces_of
from moonmill.sandboxes.types import SandboxSpec

_SPEAKING_SECONDS = 30.0
"""So long the other process may take to open a sandbox, or to close one."""
_BEGINNING_SECONDS = 3.0
_ENDING_SECONDS = 5.0
_LONGEST_LINE = 1 << 20


class Leavings(Struct, frozen=True):
    """What was left of a sandbox."""

    visible: bool
    """Whether its processes could be seen from the host while it was open."""
    processes: list[str] = []
    """Processes that were still there soon after."""
    places: list[str] = []
    """Control groups, layers and temporary files that are there for good."""
    descriptors: list[str] = []
    """File descriptors of the process that had held it."""
    children: int = 0
    """Processes below it."""
    threads: int = 0
    """Threads that it had not before."""


async def after_closing(factory: bytes, spec: SandboxSpec) -> Leavings:
    """What is left when a process has closed its sandboxes and its provider.

    Args:
        factory: what makes the provider, pickled.
        spec: of the sandboxes.
    """
    marker = new_marker()
    with _folder() as place:
        async with _holder(factory, spec, marker, "closes", place) as (process, lines):
            await _line(lines, "open")
            traces = await _seen(marker)
            assert process.stdin is not None
            await process.stdin.send(b"\n")
            counted = await _line(lines, "closed")
            processes, places = await _ended(traces), await _removed(traces)
        return Leavings(bool(traces.processes), processes, [*places, *_content(place)], **counted)


async def after_a_kill(factory: bytes, spec: SandboxSpec) -> Leavings:
    """What is left when a process was killed while it held a sandbox, and the provider has been used again since."""
    marker = new_marker()
    with _folder() as place:
        async with _holder(factory, spec, marker, "is killed", place) as (process, lines):
            await _line(lines, "open")
            traces = await _seen(marker)
            process.kill()
            await process.wait()
        processes = await _ended(traces)
        async with _holder(factory, spec, new_marker(), "comes after", place) as (process, lines):
            await _line(lines, "closed")
        return Leavings(bool(traces.processes), processes, [*await _removed(traces), *_content(place)])


class _Place(Struct, frozen=True):
    folder: Path
    said: IO[bytes]
    """What the processes say of errors."""


class _folder:  # noqa: N801
    """A folder of its own for the temporary files of the processes."""

    def __enter__(self) -> _Place:
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._folder.chmod(0o755)
        self._said = tempfile.TemporaryFile()
        return _Place(self._folder, self._said)

    def __exit__(self, *exc: object) -> None:
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@asynccontextmanager
async def _holder(
    factory: bytes, spec: SandboxSpec, marker: str, end: Literal["closes", "is killed", "comes after"], place: _Place
) -> AsyncIterator[tuple[Process, BufferedByteReceiveStream]]:
    """The other process, killed at last, and what it says."""
    work = pickle.dumps((sys.path, _backend(), marker, end, pickle.dumps(spec), factory))
    env = {**os.environ, "TMPDIR": str(place.folder)}
    argv = [sys.executable, "-P", holder.__file__]  # it is told where to import from
    async with await anyio.open_process(argv, env=env, stdout=subprocess.PIPE, stderr=place.said) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            await process.stdin.send(len(work).to_bytes(8, "big") + work)
            yield process, lines
            with anyio.move_on_after(_ENDING_SECONDS):
                await process.wait()
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as e:
            with anyio.CancelScope(shield=True):
                code = await process.wait()
            place.said.seek(0)
            why = place.said.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise BrokenPromiseError(f"a process that opens a sandbox ended with {code}: {why}") from e
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()


async def _line(lines: BufferedByteReceiveStream, wanted: str) -> dict[str, Any]:
    """What the process says when it has come that far."""
    with anyio.move_on_after(_SPEAKING_SECONDS):
        said: dict[str, Any] = json.loads(await lines.receive_until(b"\n", _LONGEST_LINE))
        assert said.pop("state") == wanted
        return said
    raise BrokenPromiseError(f"another process did not come to `{wanted}` in {_SPEAKING_SECONDS:g} s")


async def _seen(marker: str) -> Traces:
    """What can be seen of the sandbox, as soon as the process in it has begun; empty where that is never seen."""
    await _wait(lambda: any(marked_processes(marker)), _BEGINNING_SECONDS)
    return traces_of(marker)


async def _ended(traces: Traces) -> list[str]:
    """The processes that are still there, as soon as there are none or it has taken too long."""
    await _wait(lambda: not traces.processes_left(), _ENDING_SECONDS)
    return traces.processes_left()


async def _removed(traces: Traces) -> list[str]:
    """The same of control groups and layers."""
    await _wait(lambda: not traces.places_left(), _ENDING_SECONDS)
    return traces.places_left()


async def _wait(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, but no longer than this."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if holds():
            return
        await anyio.sleep(0.02)


def _content(place: _Place) -> list[str]:
    return [f"temporary file {path.relative_to(place.folder)}" for path in sorted(place.folder.rglob("*"))]


def _backend() -> str:
    return "trio" if anyio.get_cancelled_exc_class().__module__.startswith("trio") else "asyncio"
