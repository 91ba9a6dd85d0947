"""What every sandbox can do, and what provides one.

Whoever brings a provider of their own writes these two; `moonmill.sandboxes.testing` says whether its promises hold.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from moonmill.sandboxes.types import MIB, ExecResult, FileInfo, SandboxSpec

OUTPUT_LIMIT = MIB
"""Bytes of a command's output that are kept, stdout and stderr each."""
FILE_LIMIT = 64 * MIB
"""Bytes of a file or folder that are taken out of a sandbox."""
TIMEOUT = 60.0
"""Seconds a command may run."""


class Sandbox(Protocol):
    """A place of its own for one episode: processes, files and nothing else.

    Paths are POSIX paths inside of it; relative ones begin at the spec's `workdir`. Files are read and written as the
    user who runs commands. Several calls may run at once. Any of them raises `SandboxUnavailableError` where the
    sandbox is gone: at once, and for good.
    """

    @property
    def lost(self) -> str:
        """Why it is of no more use; empty while it is, as far as is known."""
        ...

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
        """Run a program and wait for its end. No shell is involved: for one, run `["bash", "-c", text]`.

        What it leaves running in the background goes on until the sandbox is closed, without its output.

        Args:
            argv: the program, found on the sandbox's PATH, and its arguments.
            input: its stdin. A program need not read it.
            cwd: the folder it runs in; None is the workdir.
            env: further environment variables.
            user: who runs it, where the provider has more than one.
            timeout: seconds; then it is killed with all it has started, those that have detached themselves included.
            output_limit: bytes of stdout, and of stderr, that are kept.

        Raises:
            ExecError: it could not be started.
            ExecTimeoutError: it ran into its time-out; has the output so far.
        """
        ...

    async def read_file(self, path: str, *, limit: int = FILE_LIMIT) -> bytes:
        """The content of a regular file.

        Raises:
            SandboxFileError: there is none that can be read.
            OutputLimitExceededError: it has more than `limit` bytes.
        """
        ...

    async def write_file(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file, whole; the folders it is in are made.

        Raises:
            SandboxFileError: it cannot be written.
        """
        ...

    async def write_files(self, files: Mapping[str, bytes | str]) -> None:
        """Write several files at once, by path.

        Raises:
            SandboxFileError: one of them cannot be written.
        """
        ...

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """The entries of a folder, sorted by path. Symbolic links are told, not followed.

        Raises:
            SandboxFileError: it is no folder, or cannot be read.
            OutputLimitExceededError: it has too many entries to be listed.
        """
        ...

    async def upload(self, source: Path | str, path: str = ".") -> None:
        """Copy what is in a folder of the host into a folder of the sandbox, which is made.

        Raises:
            OSError: the folder of the host cannot be read.
            SandboxFileError: it cannot be written there.
        """
        ...

    async def download(self, path: str, target: Path | str, *, limit: int = FILE_LIMIT) -> None:
        """Copy what is in a folder of the sandbox into a folder of the host, which is made. Nothing is followed out.

        Raises:
            SandboxFileError: there is no such folder, or what is in it must not come out (devices, links to outside).
            OutputLimitExceededError: it has more than `limit` bytes.
        """
        ...


class SandboxProvider(Protocol):
    """Makes sandboxes. To be used as an async context, on asyncio or on trio; it belongs to that event loop.

    Entering finds out what this host allows, and raises `SandboxUnavailableError`, with what to do about it, where that
    is not enough. Leaving takes away whatever it has made.
    """

    name: str
    """What it is called in configs and errors."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def enforces(self) -> Mapping[str, str]:
        """What holds on this host, and by which means; the names are those of `moonmill.sandboxes.testing.PROMISES`."""
        ...

    def require(self, spec: SandboxSpec) -> None:
        """Raise `SandboxSpecError` where it cannot honour a spec."""
        ...

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox. Whatever ran in it is gone when the context is left, however it is left.

        Raises:
            SandboxSpecError: it cannot honour the spec.
            SandboxUnavailableError: none could be made.
        """
        ...
