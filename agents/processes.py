"""A server of ours as a child process: started, watched, stopped.

The child keeps to the convention in `moonmill.agents.serving`. What always holds: it does not outlive us, even when we
are killed, because it watches the stdin we hold, and the kernel ends it with the thread that started it, which is the
event loop's under asyncio; leaving the context ends it; every wait has a bound.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from moonmill.errors import ConfigError, WorkerDiedError

_USAGE_EXIT_CODE = 2
_TERMINATE_SECONDS = 5.0
"""From SIGTERM to SIGKILL. A server needs about one."""
_KILL_SECONDS = 5.0
_LONGEST_LINE = 65536
_LAST_WORDS = 20
"""Lines of the log that an error quotes."""


class ServerLine(msgspec.Struct, frozen=True):
    """A line a server prints for us, before anything it answers."""

    ready: dict[str, Any] | None = None
    """It serves: its port and further facts."""
    progress: str | None = None
    """How far its start is, in words."""


class ServerProcess:
    """One server process, started on entering the context and ended on leaving it.

    Args:
        name: what it is called in errors.
        argv: its command line; it must print a ready line with its port.
        log_path: its stderr is appended here, and what it prints before the ready line.
        start_timeout: seconds until it must be ready.
        env: its environment; None takes ours.
        host: where it can be reached.
        on_progress: told how far its start is, by a server that says so.

    Raises:
        ConfigError: it refused what it was given (exit code 2).
        WorkerDiedError: it ended before it was ready, or was not ready in time.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        start_timeout: float,
        env: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.ready: dict[str, Any] = {}
        """What the ready line told."""
        self._argv = [*argv]
        self._start_timeout = start_timeout
        self._env = env
        self._host = host
        self._on_progress = on_progress
        self._process: Process | None = None

    async def __aenter__(self) -> "ServerProcess":
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        await self._start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop()

    @property
    def base_url(self) -> str:
        """Where it serves; another after a restart, where the port was left to the system."""
        host = self.ready.get("host", self._host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.ready['port']}"

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def returncode(self) -> int | None:
        """How it ended: None while it runs, negative where a signal ended it."""
        return self._running.returncode

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def wait_dead(self) -> None:
        """Wait until it has ended, by itself or not."""
        await self._running.wait()

    async def restart(self) -> None:
        """End it, if it still runs, and start it anew."""
        await self._stop()
        await self._start()

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def last_words(self) -> str:
        """The end of its log."""
        try:
            with self.log_path.open("rb") as log:  # It may have gigabytes by now.
                log.seek(-min(_LONGEST_LINE, log.seek(0, os.SEEK_END)), os.SEEK_END)
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_LAST_WORDS:])

    @property
    def _running(self) -> Process:
        if self._process is None:
            raise WorkerDiedError(f"the {self.name} has not been started")
        return self._process

    async def _start(self) -> None:
        try:
            opened = self.log_path.open("ab")
        except OSError as e:
            raise WorkerDiedError(f"the {self.name} cannot be started: {self.log_path}: {e.strerror}") from e
        with opened as log:
            begin = log.tell()
            try:
                # Shielded: cancelled half-way, it would leave behind a process that nobody knows of. It takes no time.
                with anyio.CancelScope(shield=True):
                    # A session of its own: Ctrl-C at our terminal is ours to act on.
                    self._process = await anyio.open_process(
                        self._argv, stdin=subprocess.PIPE, stderr=log, env=self._env, start_new_session=True
                    )
            except OSError as e:
                raise WorkerDiedError(f"the {self.name} cannot be started: {self._argv[0]}: {e.strerror}") from e
            try:
                with anyio.move_on_after(self._start_timeout) as scope:
                    await self._read_ready_line(log)
            except BaseException:
                await self._stop()
                raise
        if self.ready:
            return
        await self._stop()
        self._raise_start_error(begin, timed_out=scope.cancelled_caught)

    async def _read_ready_line(self, log: IO[bytes]) -> None:
        """Read its stdout up to the ready line, which stays empty where it ends before."""
        process = self._running
        self.ready = {}
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                line = await lines.receive_until(b"\n", _LONGEST_LINE)
                said = _read_line(line)
                if said.ready is not None:
                    self.ready = said.ready
                    return
                if said.progress is None:
                    log.write(line + b"\n")
                    log.flush()
                elif self._on_progress:
                    self._on_progress(said.progress)
        except (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.EndOfStream):
            await process.wait()

    def _raise_start_error(self, begin: int, timed_out: bool) -> None:
        process = self._running
        with self.log_path.open("rb") as log:
            log.seek(begin)
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        if not timed_out and process.returncode == _USAGE_EXIT_CODE and lines:
            raise ConfigError(f"the {self.name} refused to start: {lines[-1].removeprefix('error: ')}")
        late = f"was not ready in {self._start_timeout:g} s (its start_timeout)"
        how = late if timed_out else f"ended with {process.returncode} at once"
        words = "\n  ".join(["it said:", *lines[-_LAST_WORDS:]]) if lines else "it said nothing"
        raise WorkerDiedError(f"the {self.name} {how}; {words}\n(the whole log: {self.log_path})")

    async def _stop(self) -> None:
        """End it and collect it; also when we are being cancelled."""
        process = self._process
        if process is None:
            return
        with anyio.CancelScope(shield=True):
            for end, seconds in ((process.terminate, _TERMINATE_SECONDS), (process.kill, _KILL_SECONDS)):
                if process.returncode is not None:
                    break
                with suppress(ProcessLookupError):
                    end()
                with anyio.move_on_after(seconds):
                    await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()


def _read_line(line: bytes) -> ServerLine:
    """What a line on a server's stdout tells us: nothing where it is anything else."""
    try:
        return msgspec.json.decode(line, type=ServerLine)
    except msgspec.MsgspecError:
        return ServerLine()
