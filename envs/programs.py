"""A program of its own that plays an episode: it is told in its environment where the model is, and ends with it."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from msgspec import Struct

from moonmill.envs.foreign import Endpoint

KEPT_BYTES = 2**20
"""Of each output; what comes later is read and passed over."""


class Finished(Struct, frozen=True):
    """A program that has ended."""

    returncode: int
    """Negative where a signal ended it."""
    stdout: str
    stderr: str


async def run_program(
    command: Sequence[str],
    model: Endpoint,
    *,
    input: str = "",
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command that speaks to `model`, as clients of OpenAI's read it from their environment.

    That is in `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`. When it ends, and where the caller is cancelled,
    all processes of its group are ended; one that has left its group is not. It is no sandbox: the program is yours.

    Args:
        command: program and arguments; no shell.
        model: where the episode's model is.
        input: what it reads from stdin.
        cwd: where it runs.
        env: further variables.

    Raises:
        OSError: it cannot be started.
    """
    own = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": model.key, "OPENAI_MODEL": model.model}
    process = await anyio.open_process(
        list(command), cwd=cwd, env={**os.environ, **own, **(env or {})}, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = bytearray(), bytearray()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, process.stdin, input.encode())
            for stream, output in zip((process.stdout, process.stderr), outputs, strict=True):
                tasks.start_soon(_read, stream, output)
            await process.wait()
            _end(process)  # What it leaves behind may hold its outputs open.
    finally:
        _end(process)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    assert process.returncode is not None
    stdout, stderr = (output.decode(errors="replace") for output in outputs)
    return Finished(process.returncode, stdout, stderr)


async def _feed(stream: ByteSendStream, data: bytes) -> None:
    with suppress(anyio.BrokenResourceError, BrokenPipeError, ConnectionResetError):
        await stream.send(data)
        await stream.aclose()


async def _read(stream: ByteReceiveStream, output: bytearray) -> None:
    async for chunk in stream:
        output += chunk[: KEPT_BYTES - len(output)]


def _end(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
