"""Tools to mix into an environment that has a sandbox: `bash`, `python`, and reading, writing and editing files.

Each is a class to mix in: `class Coder(BashTool, EditFileTool, MultiTurnEnv)`. What goes wrong by the model's doing, a
time-out or a missing file, is an answer that says so in plain words, and no fault of the environment's; a sandbox that
is lost passes through and fails the rollout.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from msgspec import Meta

from moonmill.envs.command_output import told_output, told_result
from moonmill.envs.tools import tool
from moonmill.sandboxes import (
    ExecError,
    ExecResult,
    ExecTimeoutError,
    OutputLimitExceededError,
    SandboxFileError,
)
from moonmill.sandboxes.types import MIB

FILE_CHARS = 20_000
"""Characters of a file that are shown at once."""
LINE_CHARS = 1_000
"""Characters of a line of a file that are shown."""
FILE_BYTES = 4 * MIB
"""A larger file is neither read nor edited."""

_Seconds = Annotated[int, Meta(ge=1, le=600)]
_Number = Annotated[int, Meta(ge=1)]


class SandboxTool:
    """What the tools have in common: they need a sandbox."""

    sandbox: Any


class BashTool(SandboxTool):
    """The tool `bash`."""

    @tool
    def bash(self, command: str, timeout: _Seconds = 60) -> str:
        """Run a command in bash. Each call is a new shell that begins in the working directory. Files stay, and so do
        programs started in the background; `cd` and variables do not.

        Args:
            command: what to run
            timeout: seconds after which it is killed
        """
        return _run(self.sandbox, ["bash", "-c", command], timeout=timeout)


class PythonTool(SandboxTool):
    """The tool `python`."""

    python_seconds: int = 60
    """Seconds after which a program is killed."""

    @tool
    def python(self, code: str) -> str:
        """Run Python code and see what it prints. Each call is a new program that begins in the working directory. It
        can use the files and modules there, and knows nothing of earlier calls.

        Args:
            code: the program; print what you want to see
        """
        return _run(self.sandbox, ["python3", "-"], input=code, timeout=self.python_seconds)


class ReadFileTool(SandboxTool):
    """The tool `read_file`."""

    @tool
    def read_file(self, path: str, start: _Number = 1, lines: _Number = 200) -> str:
        """Read a text file. Its lines are shown with their numbers, which are not part of it.

        Args:
            path: the file
            start: the first line to show
            lines: how many to show at most
        """
        try:
            text = self.sandbox.read_file(path, limit=FILE_BYTES).decode()
        except UnicodeDecodeError as e:
            return f"error: {path}: is no text in UTF-8 (see the byte at position {e.start})"
        except _TOLD as e:
            return f"error: {e}"
        return _numbered(path, text, start, lines)


class WriteFileTool(SandboxTool):
    """The tool `write_file`."""

    @tool
    def write_file(self, path: str, content: str) -> str:
        """Write a text file, whole. A file that is there is replaced; folders that are missing are made.

        Args:
            path: the file
            content: all of its text
        """
        try:
            self.sandbox.write_file(path, content)
        except _TOLD as e:
            return f"error: {e}"
        return f"wrote {path}: {_count(len(_lines_of(content)), 'line')}"


class EditFileTool(SandboxTool):
    """The tool `edit_file`."""

    @tool
    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a piece of a text file. The old text must occur in it exactly once; give as much of it as that takes.

        Args:
            path: the file
            old: the text to replace, exactly as it stands in the file, white space included
            new: what to put in its place
        """
        try:
            # What is no UTF-8 goes through unchanged.
            text = self.sandbox.read_file(path, limit=FILE_BYTES).decode("utf-8", "surrogateescape")
            if problem := _cannot_replace(text, old, new):
                return f"error: {path}: {problem}"
            edited = text.replace(old, new).encode("utf-8", "surrogateescape")
            self.sandbox.write_file(path, edited, mode=_mode_of(self.sandbox, path))
        except _TOLD as e:
            return f"error: {e}"
        return f"edited {path} at line {_line_at(text, text.find(old))}"


class FileTools(ReadFileTool, WriteFileTool, EditFileTool):
    """The tools `read_file`, `write_file` and `edit_file`."""


_TOLD = (ExecError, ExecTimeoutError, OutputLimitExceededError, SandboxFileError)
"""What an answer tells the model."""


def _run(sandbox: Any, argv: Sequence[str], *, timeout: int, input: str = "") -> str:
    """How a command ended, in words, after its output."""
    try:
        done: ExecResult = sandbox.exec(argv, input=input, timeout=timeout)
    except ExecTimeoutError as e:
        end = f"[killed: it took longer than {_count(timeout, 'second')}; above is what it had written until then]"
        return told_output(e.stdout, e.stderr, e.truncated, end)
    except ExecError as e:
        return f"error: {e}"
    return told_result(done)


def _numbered(path: str, text: str, start: int, most: int) -> str:
    lines = _lines_of(text)
    if not lines:
        return f"[{path} is empty]"
    if start > len(lines):
        return f"error: {path}: has {_count(len(lines), 'line')}, so none at {start}"
    shown: list[str] = []
    left = FILE_CHARS
    for number, line in enumerate(lines[start - 1 : start - 1 + most], start):
        cut = len(line) - LINE_CHARS
        shown.append(f"{number:>6}\t{line[:LINE_CHARS]}" + (f"[{cut} characters left out]" if cut > 0 else ""))
        left -= len(shown[-1])
        if left < 0:
            break
    last = start - 1 + len(shown)
    if start > 1 or last < len(lines):
        rest = f"; go on with start={last + 1}" if last < len(lines) else ""
        shown.append(f"[lines {start} to {last} of {len(lines)}{rest}]")
    return "\n".join(shown)


def _cannot_replace(text: str, old: str, new: str) -> str:
    """Why `old` cannot be replaced, in words for the model; empty where it can."""
    if not old:
        return "old is empty: it must be a piece of the file (write_file makes a new one)"
    if old == new:
        return "old and new are the same: nothing would change"
    places = [*itertools.islice(_places(text, old), _PLACES_SHOWN + 1)]
    if len(places) == 1:
        return ""
    if places:
        found = ", ".join(str(_line_at(text, place)) for place in places[:_PLACES_SHOWN])
        more = " and more" if len(places) > _PLACES_SHOWN else ""
        return f"old occurs more than once, at the lines {found}{more}: give more of the text around the one you mean"
    if "\r\n" in text and old.replace("\n", "\r\n") in text:
        return "old does not occur in it: its lines end in \\r\\n, those of old in \\n"
    alike = old.strip().partition("\n")[0].strip()
    near = [number for number, line in enumerate(_lines_of(text), 1) if alike and alike in line]
    hint = f"; look at line {near[0]}: compare white space and the lines that follow" if near else ""
    return f"old does not occur in it{hint}"


_PLACES_SHOWN = 5


def _places(text: str, piece: str) -> Iterator[int]:
    """Where it occurs, overlapping ones included."""
    place = text.find(piece)
    while place >= 0:
        yield place
        place = text.find(piece, place + 1)


def _mode_of(sandbox: Any, path: str) -> int:
    """The permissions of a file, so that a script that was edited can still be run."""
    done: ExecResult = sandbox.exec(["stat", "-L", "-c", "%a", "--", path], timeout=10)
    return int(done.stdout, 8) if done.returncode == 0 else 0o644


def _lines_of(text: str) -> list[str]:
    """The lines of a file as editors count them."""
    return text.removesuffix("\n").split("\n") if text else []


def _line_at(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
