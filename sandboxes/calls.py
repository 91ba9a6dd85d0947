"""A call to a supervisor, as the host keeps it: what has arrived, how it ended, and what that means."""

import errno
import os
import struct
from collections.abc import Sequence
from typing import Literal

import anyio
from msgspec import Struct

from moonmill.sandboxes.errors import ExecError, FileProblem, SandboxFileError
from moonmill.sandboxes.inside import frames
from moonmill.sandboxes.specs import is_environment, is_text
from moonmill.sandboxes.types import FileInfo

_ODD = "surrogateescape"
"""Names of files may be any bytes; in text, surrogates stand for what is no UTF-8."""
_PROBLEMS: dict[int, FileProblem] = {
    errno.ENOENT: "not_found",
    errno.EISDIR: "is_a_directory",
    errno.ENOTDIR: "not_a_directory",
    errno.ENODEV: "not_a_file",
    errno.ENXIO: "not_a_file",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EROFS: "read_only",
}
_NO_PROCESSES = "no further process can be started there, since what runs has used up limits.pids"
_KINDS: dict[str, Literal["file", "directory", "symlink", "other"]] = {"f": "file", "d": "directory", "l": "symlink"}


class Refusal(Struct, frozen=True):
    """Why a call could not be."""

    number: int
    """An `errno`, or 0."""
    stage: str
    """At what it failed: `program`, `cwd`, `user`, `file`, `sandbox`."""
    detail: str

    @property
    def lacks_processes(self) -> bool:
        """The kernel makes no further process of the sandbox, by itself or to be a program."""
        return self.number == errno.EAGAIN and self.stage in ("sandbox", "program")

    def say(self, program: str, cwd: str, user: str | None) -> str:
        """As a sentence about a command."""
        if self.lacks_processes:
            return f"{program!r} could not be started: {_NO_PROCESSES}"
        if self.stage == "program":
            missing = self.number == errno.ENOENT
            return f"there is no program {program!r}" if missing else f"{program!r} cannot be run: {self.detail}"
        if self.stage == "cwd":
            return f"{program!r} cannot be run in {cwd!r}: {self.detail}"
        if self.stage == "user":
            return f"{program!r} cannot be run as the user {user!r}: {self.detail}"
        return f"{program!r} could not be started: {self.detail}"


class Ending(Struct, frozen=True):
    """How a call ended."""

    stdout: bytes = b""
    stderr: bytes = b""
    refusal: Refusal | None = None
    returncode: int = 0
    timed_out: bool = False
    oom_killed: bool = False
    truncated: bool = False
    duration: float = 0.0


class Call:
    """One call under way. What comes in is checked: it comes from a sandbox."""

    def __init__(self, limit: int) -> None:
        self.over = anyio.Event()
        self.ending = Ending()
        self.taken = anyio.Event()
        """Set when input was taken."""
        self.on_the_way = 0
        """Bytes of input that were sent and not taken."""
        self._limit = limit
        self._output = {frames.STDOUT: bytearray(), frames.STDERR: bytearray()}

    def take(self, kind: int, payload: bytes) -> None:
        """Take a frame in. Raises `ValueError` where it cannot be one of a supervisor's."""
        if kind in self._output:
            output = self._output[kind]
            output += payload
            if len(output) > self._limit:
                raise ValueError(f"more than {self._limit} bytes of output")
        elif kind == frames.TAKEN:
            self.on_the_way -= _unpacked(frames.TAKE, payload)[0]
            if self.on_the_way < 0:
                raise ValueError("more input taken than was given")
            self.taken.set()
        elif kind == frames.REFUSED:
            (number,) = _unpacked(frames.ERRNO, payload[: frames.ERRNO.size])
            stage, _, detail = payload[frames.ERRNO.size :].decode("utf-8", "replace").partition("\0")
            self._end(Ending(*self._said(), refusal=Refusal(number, stage, detail)))
        elif kind == frames.EXIT:
            code, flags, duration = _unpacked(frames.ENDED, payload)
            timed_out, truncated = bool(flags & frames.TIMED_OUT), bool(flags & frames.TRUNCATED)
            oom_killed = bool(flags & frames.OOM_KILLED)
            self._end(Ending(*self._said(), None, code, timed_out, oom_killed, truncated, duration))
        else:
            raise ValueError(f"a frame of the kind {kind}")

    def _said(self) -> tuple[bytes, bytes]:
        return bytes(self._output[frames.STDOUT]), bytes(self._output[frames.STDERR])

    def _end(self, ending: Ending) -> None:
        self.ending = ending
        self.over.set()
        self.taken.set()


def check_argv(argv: object) -> list[bytes]:
    """The arguments as bytes. Raises `ExecError` where no program can be given them."""
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence) or not argv or not argv[0]:
        raise ExecError(
            f"a command is a list that begins with a program, not {argv!r:.200}; for a shell: ['bash', '-c', text]"
        )
    for number, argument in enumerate(argv):
        if not isinstance(argument, str):
            raise ExecError(f"argument {number} of {argv[0]!r:.200} is {argument!r:.200}, but should be text")
        if "\0" in argument:
            raise ExecError(f"argument {number} of {argv[0]!r:.200} has a NUL in it, which no program can be given")
        if not is_text(argument, _ODD):
            raise ExecError(f"argument {number} of {argv[0]!r:.200} is {argument!r:.200}, which is no text in UTF-8")
    return [argument.encode("utf-8", _ODD) for argument in argv]


def check_surroundings(cwd: object, env: object, user: object) -> None:
    """Raise `ExecError` where no command can run there, with these variables, or as that user."""
    for name, value in (("cwd", cwd), ("user", user)):
        if value is not None and not is_text(value, _ODD):
            raise ExecError(f"{name} is {value!r:.200}, but should be text in UTF-8 without a NUL, or None")
    if env is not None and not is_environment(env, _ODD):
        raise ExecError(f"env is {env!r:.200}, but should be texts in UTF-8 by names without `=`, none with a NUL")


def check_input(given: object) -> bytes:
    """A command's input as bytes. Raises `ExecError` where it cannot be given that."""
    try:
        return b"" if given is None else _as_bytes(given)
    except ValueError as e:
        raise ExecError(f"input {e}") from None


def check_bounds(timeout: object, output_limit: object) -> None:
    """Raise `ExecError` where a command could not be bounded so."""
    try:
        is_fine = isinstance(timeout, int | float) and float(timeout) > 0
    except OverflowError:
        raise ExecError("timeout is a number that is too large for a float, but should be seconds") from None
    if not is_fine:
        raise ExecError(f"timeout is {timeout!r:.100}, but should be seconds, more than 0")
    if not isinstance(output_limit, int) or output_limit < 0:
        raise ExecError(f"output_limit is {output_limit!r:.100}, but should be a number of bytes")


def check_path(path: object) -> bytes:
    """The path as bytes. Raises `SandboxFileError` where there can be no such file."""
    if not isinstance(path, str):
        raise SandboxFileError(f"{path!r:.200}", "invalid", f"a path in a sandbox is text, not {type(path).__name__}")
    if not path or "\0" in path:
        raise SandboxFileError(path, "invalid", "a path may not be empty" if not path else "a path may not have a NUL")
    if not is_text(path, _ODD):
        raise SandboxFileError(f"{path!r:.200}", "invalid", "a path is text in UTF-8")
    return path.encode("utf-8", _ODD)


def check_content(path: str, content: object) -> bytes:
    """A file's content as bytes. Raises `SandboxFileError` where it is none."""
    try:
        return _as_bytes(content)
    except ValueError as e:
        raise SandboxFileError(path, "invalid", f"its content {e}") from None


def check_mode(path: str, mode: object) -> None:
    """Raise `SandboxFileError` where a file cannot have these permissions."""
    if not isinstance(mode, int) or not 0 <= mode <= 0o7777:
        raise SandboxFileError(path, "invalid", f"mode is {mode!r:.100}, but should be permission bits, as 0o644")


def check_limit(path: str, limit: object) -> None:
    """Raise `SandboxFileError` where there cannot be so many bytes."""
    if not isinstance(limit, int) or limit < 0:
        raise SandboxFileError(path, "invalid", f"limit is {limit!r:.100}, but should be a number of bytes")


def file_error(path: str, refusal: Refusal) -> SandboxFileError:
    """The error that a refusal stands for."""
    if refusal.lacks_processes:
        return SandboxFileError(path, "no_processes", _NO_PROCESSES)
    return SandboxFileError(path, _PROBLEMS.get(refusal.number, "invalid"), refusal.detail)


def listing(records: bytes) -> tuple[FileInfo, ...]:
    """The entries that `list` answers with. Raises `ValueError` where those are none."""
    found = []
    for record in records.split(b"\0")[:-1]:
        kind, size, mode, path = record.split(b" ", 3)
        found.append(FileInfo(os.fsdecode(path), _KINDS.get(kind.decode(), "other"), int(size), int(mode)))
    return tuple(sorted(found, key=lambda info: info.path))


def _as_bytes(given: object) -> bytes:
    """Raises `ValueError` with what is wrong with it."""
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as e:
            raise ValueError(f"has {given[e.start]!r} at {e.start}, which UTF-8 does not know: give bytes") from None
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise ValueError(f"is {given!r:.200}, but should be bytes or text")


def _unpacked(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != form.size:
        raise ValueError(f"{len(payload)} bytes where {form.size} belong")
    return tuple(form.unpack(payload))
