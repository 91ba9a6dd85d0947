"""A sandbox as an environment's code uses it: with blocking methods on a thread, with awaitable ones on an event loop.

What is lost is remembered: an episode whose code has caught a `SandboxUnavailableError` still fails, for what the code
made of it is no answer and no reward.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from moonmill.envs.elsewhere import wait_on_loop, wait_on_thread
from moonmill.envs.loop import Answer
from moonmill.envs.sandbox_lease import Lease
from moonmill.errors import MoonmillError
from moonmill.sandboxes import ExecResult, FileInfo
from moonmill.sandboxes.sandbox import FILE_LIMIT, OUTPUT_LIMIT, TIMEOUT

Lost = Callable[[MoonmillError], None]


class Waiting(Protocol):
    """Who counts the time that an episode waits for sandboxes."""

    def waiting(self) -> AbstractContextManager[None]:
        """What is done inside is a waiting for one."""
        ...


class Held:
    """A lease that an episode holds. It is opened when it is first needed, and ends when nobody has it any more.

    Args:
        lease: of the sandbox.
        episode: counts the waiting.
        lost: told of errors of ours.
    """

    def __init__(self, lease: Lease, episode: Waiting, lost: Lost) -> None:
        self.lease = lease
        self._episode = episode
        self._lost = lost
        self._is_open = False
        weakref.finalize(self, lease.close, _ignore).atexit = False

    def open(self) -> None:
        """Open it unless that has been done, from a thread."""
        if not self._is_open:
            with self._noting(), self._episode.waiting():
                wait_on_thread(self.lease.open)
            self._is_open = True

    async def open_there(self) -> None:
        """Open it unless that has been done, from an event loop."""
        if not self._is_open:
            with self._noting(), self._episode.waiting():
                await wait_on_loop(self.lease.open)
            self._is_open = True

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the sandbox, from a thread."""
        self.open()
        with self._noting():
            return wait_on_thread(partial(self.lease.call, method, args, kwargs))

    async def ask_there(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the sandbox, from an event loop."""
        await self.open_there()
        with self._noting():
            return await wait_on_loop(partial(self.lease.call, method, args, kwargs))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except MoonmillError as e:
            self._lost(e)
            raise


class AsyncSandbox:
    """A sandbox for asynchronous code. Its methods are those of `moonmill.sandboxes.Sandbox`, and explained there."""

    def __init__(self, held: Held) -> None:
        self._held = held

    @property
    def lost(self) -> str:
        """Why it is of no more use; empty while it is, as far as is known."""
        return self._held.lease.lost

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
        """Run a program and wait for its end."""
        options = {"cwd": cwd, "env": env, "user": user, "timeout": timeout, "output_limit": output_limit}
        result: ExecResult = await self._held.ask_there("exec", argv, input=input, **options)
        return result

    async def read_file(self, path: str, *, limit: int = FILE_LIMIT) -> bytes:
        """The content of a regular file."""
        content: bytes = await self._held.ask_there("read_file", path, limit=limit)
        return content

    async def write_file(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file, whole; the folders it is in are made."""
        await self._held.ask_there("write_file", path, content, mode=mode)

    async def write_files(self, files: Mapping[str, bytes | str]) -> None:
        """Write several files at once, by path."""
        await self._held.ask_there("write_files", files)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """The entries of a folder, sorted by path."""
        entries: tuple[FileInfo, ...] = await self._held.ask_there("list_files", path, recursive=recursive)
        return entries

    async def upload(self, source: Path | str, path: str = ".") -> None:
        """Copy what is in a folder of the host into a folder of the sandbox."""
        await self._held.ask_there("upload", source, path)

    async def download(self, path: str, target: Path | str, *, limit: int = FILE_LIMIT) -> None:
        """Copy what is in a folder of the sandbox into a folder of the host."""
        await self._held.ask_there("download", path, target, limit=limit)


class BlockingSandbox:
    """A sandbox for synchronous code: the methods of `moonmill.sandboxes.Sandbox`, which come back when they are done.

    A limit of the episode, or Ctrl-C, ends the waiting, and what was waited for.
    """

    def __init__(self, held: Held) -> None:
        self._held = held

    @property
    def lost(self) -> str:
        """Why it is of no more use; empty while it is, as far as is known."""
        return self._held.lease.lost

    @property
    def aio(self) -> AsyncSandbox:
        """The same sandbox for asynchronous code."""
        return AsyncSandbox(self._held)

    def exec(
        self,
        argv: Sequence[str],
        *,
        input: bytes | str = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float = TIMEOUT,
        output_limit: int = OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run a program and wait for its end. No shell is involved: for one, run `["bash", "-c", text]`.

        Args:
            argv: the program and its arguments.
            input: its stdin.
            cwd: the folder it runs in; None is the workdir.
            env: further environment variables.
            user: who runs it, where the provider has more than one.
            timeout: seconds; then it is killed with all it has started.
            output_limit: bytes of stdout, and of stderr, that are kept.

        Raises:
            ExecError: it could not be started.
            ExecTimeoutError: it ran into its time-out; has the output so far.
            SandboxUnavailableError: the sandbox is gone; the rollout fails.
        """
        options = {"cwd": cwd, "env": env, "user": user, "timeout": timeout, "output_limit": output_limit}
        result: ExecResult = self._held.ask("exec", argv, input=input, **options)
        return result

    def read_file(self, path: str, *, limit: int = FILE_LIMIT) -> bytes:
        """The content of a regular file.

        Raises:
            SandboxFileError: there is none that can be read.
            OutputLimitExceededError: it has more than `limit` bytes.
        """
        content: bytes = self._held.ask("read_file", path, limit=limit)
        return content

    def write_file(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file, whole; the folders it is in are made.

        Raises:
            SandboxFileError: it cannot be written.
        """
        self._held.ask("write_file", path, content, mode=mode)

    def write_files(self, files: Mapping[str, bytes | str]) -> None:
        """Write several files at once, by path.

        Raises:
            SandboxFileError: one of them cannot be written.
        """
        self._held.ask("write_files", files)

    def list_files(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """The entries of a folder, sorted by path. Symbolic links are told, not followed.

        Raises:
            SandboxFileError: it is no folder, or cannot be read.
        """
        entries: tuple[FileInfo, ...] = self._held.ask("list_files", path, recursive=recursive)
        return entries

    def upload(self, source: Path | str, path: str = ".") -> None:
        """Copy what is in a folder of the host into a folder of the sandbox, which is made.

        Raises:
            SandboxFileError: it cannot be written there.
        """
        self._held.ask("upload", source, path)

    def download(self, path: str, target: Path | str, *, limit: int = FILE_LIMIT) -> None:
        """Copy what is in a folder of the sandbox into a folder of the host, which is made. Nothing is followed out.

        Raises:
            SandboxFileError: there is no such folder, or what is in it must not come out.
            OutputLimitExceededError: it has more than `limit` bytes.
        """
        self._held.ask("download", path, target, limit=limit)


def _ignore(answer: Answer) -> None: ...
