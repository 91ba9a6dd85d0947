"""A sandbox with a supervisor inside: what every provider of ours gives.

A provider brings a byte stream to the supervisor (`moonmill.sandboxes.inside`) and cleans up after it; all else is
here.
"""

import posixpath
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from anyio.lowlevel import RunVar
from msgspec import Struct

from moonmill.sandboxes import archives
from moonmill.sandboxes.alongside import alongside
from moonmill.sandboxes.calls import (
    check_argv,
    check_bounds,
    check_content,
    check_input,
    check_limit,
    check_mode,
    check_path,
    check_surroundings,
    file_error,
    listing,
)
from moonmill.sandboxes.errors import (
    ExecError,
    ExecTimeoutError,
    OutputLimitExceededError,
    SandboxFileError,
    SandboxSpecError,
)
from moonmill.sandboxes.link import ByteStream, Link
from moonmill.sandboxes.sandbox import FILE_LIMIT, OUTPUT_LIMIT, TIMEOUT, Sandbox
from moonmill.sandboxes.types import MIB, ExecResult, FileInfo

_FILE_SECONDS = 120.0
"""So long something may be done to files."""
_LIST_LIMIT = 8 * MIB
_ARCHIVERS = 4
"""Archives that are packed or unpacked at once. They are bound by the processor."""
_archivers: RunVar[anyio.CapacityLimiter] = RunVar("archivers")


class Setup(Struct, frozen=True, kw_only=True):
    """What holds for all commands of a sandbox."""

    workdir: str
    env: Mapping[str, str]
    user: str | None
    """Who runs them, where the supervisor is somebody else."""
    rlimits: Mapping[str, int] = {}
    """Limits for each process, by their names in Python's `resource`."""
    hide: bool
    """The supervisor is of the same user, and hides from it."""
    oom_counter: str = ""
    """A file inside that says how many were killed for their memory, where there is one."""


class SupervisedSandbox:
    """The `Sandbox` at the other end of a link. Get one with `supervised`."""

    def __init__(self, link: Link, setup: Setup, oom_kills: Callable[[], Awaitable[int]]) -> None:
        self._link = link
        self._setup = setup
        self._oom_kills = oom_kills
        self._oom_seen = 0

    @property
    def lost(self) -> str:
        """As `Sandbox.lost`."""
        return self._link.lost

    async def exec(
        self,
        argv: Sequence[str],
        *,
        input: bytes | str = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float = TIMEOUT,  # noqa: ASYNC109  # the sandbox measures it
        output_limit: int = OUTPUT_LIMIT,
    ) -> ExecResult:
        """As `Sandbox.exec`."""
        check_bounds(timeout, output_limit)
        check_surroundings(cwd, env, user)
        where = posixpath.join(self._setup.workdir, cwd or "")
        call = {"argv": check_argv(argv), "env": {**(env or {})}, "user": user, "cwd": where}
        ending = await self._link.call(call, check_input(input) or None, limit=output_limit, seconds=timeout)
        if ending.refusal:
            raise ExecError(ending.refusal.say(argv[0], where, user))
        if ending.timed_out:
            raise ExecTimeoutError(
                f"{argv[0]} ran into its time-out of {timeout:g} s",
                ending.stdout,
                ending.stderr,
                timeout,
                ending.truncated,
            )
        oom_killed = ending.oom_killed or (ending.returncode != 0 and await self._has_oom_killed())
        return ExecResult(
            ending.returncode, ending.stdout, ending.stderr, ending.truncated, oom_killed, ending.duration
        )

    async def read_file(self, path: str, *, limit: int = FILE_LIMIT) -> bytes:
        """As `Sandbox.read_file`."""
        return await self._do("read", path, limit, limit=limit)

    async def write_file(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """As `Sandbox.write_file`."""
        check_mode(path, mode)
        await self._do("write", path, mode, input=check_content(path, content))

    async def write_files(self, files: Mapping[str, bytes | str]) -> None:
        """As `Sandbox.write_files`."""
        if not isinstance(files, Mapping):
            raise SandboxFileError(".", "invalid", f"files are contents by their paths, not {files!r:.200}")
        contents = {path: check_content(path, content) for path, content in files.items()}
        for path in contents:
            check_path(path)
        # The others one by one, so that an error names the one that it is about.
        inside = {p: content for p, content in contents.items() if not p.startswith("/") and ".." not in p.split("/")}
        if inside:
            await self._do("unpack", ".", input=archives.of(inside))
        for path in contents.keys() - inside.keys():
            await self.write_file(path, contents[path])

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """As `Sandbox.list_files`."""
        records = await self._do("list", path, bool(recursive), limit=_LIST_LIMIT)
        try:
            return listing(records)
        except ValueError as e:  # commands of the same user can write to what lists them
            raise SandboxFileError(path, "invalid", "somebody has meddled with its listing") from e

    async def upload(self, source: Path | str, path: str = ".") -> None:
        """As `Sandbox.upload`."""
        archive = await anyio.to_thread.run_sync(archives.pack, Path(source), limiter=_places())
        await self._do("unpack", path, input=archive)

    async def download(self, path: str, target: Path | str, *, limit: int = FILE_LIMIT) -> None:
        """As `Sandbox.download`."""
        archive = await self._do("pack", path, limit, limit=limit)
        await _until_cancelled(partial(archives.unpack, archive, path, Path(target)))

    async def _do(
        self, what: str, path: str, *args: object, input: bytes | None = None, limit: int = OUTPUT_LIMIT
    ) -> bytes:
        """Do something to files; returns what it says."""
        call = {"do": what, "args": (check_path(path), *args), "user": None, "cwd": self._setup.workdir}
        check_limit(path, limit)
        ending = await self._link.call(call, input, limit=limit, seconds=_FILE_SECONDS)
        if ending.refusal:
            raise file_error(path, ending.refusal)
        if ending.timed_out:
            raise ExecTimeoutError(f"{path}: it took over {_FILE_SECONDS:g} s", b"", b"", _FILE_SECONDS, False)
        if ending.truncated:
            raise OutputLimitExceededError(f"{path}: there is more than the limit of {limit} bytes")
        if ending.returncode:
            detail = "what was at work on it was killed" if ending.returncode > 128 else "it could not be done"
            raise SandboxFileError(path, "invalid", detail)
        return ending.stdout

    async def _has_oom_killed(self) -> bool:
        kills = await self._oom_kills()
        seen, self._oom_seen = self._oom_seen, kills
        return kills > seen


async def give(sandbox: Sandbox, files: Mapping[str, bytes | str]) -> None:
    """Write the files of a spec. Raises `SandboxSpecError` where one of them cannot be."""
    if not files:
        return
    try:
        await sandbox.write_files(files)
    except SandboxFileError as e:
        raise SandboxSpecError(f"files: {e}") from e


async def _none_killed() -> int:
    return 0


def _places() -> anyio.CapacityLimiter:
    """Threads for archives: apart from those that everything else waits for, as the start of sandboxes."""
    try:
        return _archivers.get()
    except LookupError:
        _archivers.set(anyio.CapacityLimiter(_ARCHIVERS))
        return _archivers.get()


async def _until_cancelled(work: Callable[[threading.Event], None]) -> None:
    """Do something on a thread, which is told to stop where it is cancelled, and is waited for in any case."""
    stop = threading.Event()

    async def tell() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()

    async with alongside(tell):
        await anyio.to_thread.run_sync(work, stop, limiter=_places())
        await anyio.lowlevel.checkpoint()  # where it was cancelled, it goes no further


@asynccontextmanager
async def supervised(
    stream: ByteStream,
    setup: Setup,
    files: Mapping[str, bytes | str],
    *,
    name: str,
    lifetime: float,
    ready_seconds: float,
    oom_kills: Callable[[], Awaitable[int]] = _none_killed,
) -> AsyncIterator[SupervisedSandbox]:
    """The sandbox whose supervisor is at the other end of a stream, once it is ready.

    Args:
        stream: the way to it. Whoever made it closes it, after this.
        setup: what holds for all commands.
        files: what is there from the start, by path.
        name: what the sandbox is called in errors.
        lifetime: seconds until it is closed in any case.
        ready_seconds: so long it may take until the supervisor is ready.
        oom_kills: how many processes of it the kernel has killed for their memory.

    Raises:
        SandboxUnavailableError: it does not get ready.
        SandboxSpecError: one of the files cannot be there.
    """
    link = Link(stream, name)
    fields = msgspec.structs.asdict(setup) | {"env": {**setup.env}, "rlimits": {**setup.rlimits}}
    async with alongside(partial(link.serve, lifetime)):
        await link.set_up(fields, ready_seconds)
        sandbox = SupervisedSandbox(link, setup, oom_kills)
        await give(sandbox, files)
        yield sandbox
