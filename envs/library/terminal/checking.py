"""Whether files have become what is wanted.

Nothing that judges is in a sandbox: files are fetched, and compared on our side, with what no sandbox has ever held.
Whatever the model has done to its sandbox, then, to its programs, or to what reads its files there, it passes by the
right files alone. A script of its own is tried out in a fresh sandbox, where nothing that it has left behind is, on
folders that it has never seen.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate

from msgspec import Struct

from moonmill.envs.library.terminal.files import Entry
from moonmill.envs.library.terminal.problems import Run, Wanted
from moonmill.envs.sandbox_handles import BlockingSandbox
from moonmill.sandboxes import (
    ExecError,
    ExecTimeoutError,
    FileInfo,
    OutputLimitExceededError,
    SandboxFileError,
    SandboxUnavailableError,
)

SECONDS = 20.0
"""For one run of a script, and for fetching files."""
LONGEST = 20_000
"""Bytes of a file, or of what a script prints, that are looked at."""

OpenSandbox = Callable[[dict[str, str | bytes]], AbstractContextManager[BlockingSandbox]]
"""Gives a fresh sandbox with these files."""


class Verdict(Struct, frozen=True):
    """How much is as it is wanted."""

    right: int
    total: int
    """Files and runs that are wanted."""
    superfluous: int
    """Files that should not be there."""

    @property
    def is_solved(self) -> bool:
        return self.right == self.total and not self.superfluous

    @property
    def share(self) -> float:
        return self.right / self.total


def check(box: BlockingSandbox, wanted: Wanted, open_sandbox: OpenSandbox) -> Verdict:
    """What has become of the files in a sandbox.

    Raises:
        SandboxUnavailableError: it is lost, or no fresh one is to be had.
    """
    total = len(wanted.files) + len(wanted.runs)
    try:
        listed = {info.path: info for info in box.list_files(recursive=True) if info.kind != "directory"}
    except (SandboxFileError, OutputLimitExceededError):
        return Verdict(0, total, 0)
    there = [listed[path] for path in wanted.files if path in listed]
    contents = _contents(box, [info for info in there if info.kind == "file" and info.size <= LONGEST])
    right = sum(_is_right(contents[path], listed[path].mode, wanted.files[path]) for path in contents)
    if wanted.runs and (script := contents.get(wanted.runs[0].script)) is not None:
        right += _runs_right(script, wanted.runs, open_sandbox)
    return Verdict(right, total, len(listed.keys() - wanted.files.keys()))


def _contents(box: BlockingSandbox, files: Sequence[FileInfo]) -> dict[str, bytes]:
    """What is in the files, fetched at once; nothing where they are not as they were when they were listed."""
    size = sum(info.size for info in files)
    try:
        done = box.exec(["cat", "--", *(info.path for info in files)], timeout=SECONDS, output_limit=size + 1)
    except (ExecTimeoutError, ExecError):
        return {}
    if len(done.stdout_bytes) != size:
        return {}
    ends = [*accumulate(info.size for info in files)]
    return {info.path: done.stdout_bytes[end - info.size : end] for info, end in zip(files, ends, strict=True)}


def _is_right(content: bytes, mode: int, entry: Entry) -> bool:
    if entry.mode is not None and mode != entry.mode:
        return False
    if entry.content is None:
        return True
    if not entry.is_answer:
        return content == entry.content.encode()
    lines = [line.rstrip() for line in content.decode("utf-8", "replace").rstrip().split("\n")]
    wanted = entry.content.split("\n")
    return sorted(lines) == sorted(wanted) if entry.any_order else lines == wanted


def _runs_right(script: bytes, runs: Sequence[Run], open_sandbox: OpenSandbox) -> int:
    """How many runs of the model's script print what is wanted.

    A sandbox that is lost is tried once more. Two in a row are lost by what runs in them.
    """
    files: dict[str, str | bytes] = {runs[0].script: script}
    for number, run in enumerate(runs):
        files |= {f"folder-{number}/{path}": content for path, content in run.files.items()}
    for _ in range(2):
        with open_sandbox(files) as fresh:
            try:
                return sum(_prints(fresh, run, f"folder-{number}") for number, run in enumerate(runs))
            except SandboxUnavailableError:
                continue
    return 0


def _prints(fresh: BlockingSandbox, run: Run, folder: str) -> bool:
    try:
        done = fresh.exec(["bash", run.script, folder], timeout=SECONDS, output_limit=LONGEST)
    except (ExecTimeoutError, ExecError):
        return False
    return done.stdout.strip() == run.printed
