"""JSON lines: files of users', to be read; and append-only ones of our own, which survive a killed writer.

A line is written with one `write` call, so a reader sees whole lines but for a torn last one, which a kill can leave;
`JsonlWriter` cuts it off when it opens the file, `read_jsonl` passes over it. Appending hands the line to the kernel:
it outlives our process, and `sync` makes it outlive the machine. That there is such a file does so from the beginning.
"""

import codecs
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from moonmill.errors import ConfigError, RunDirectoryError

T = TypeVar("T")


class JsonlWriter:
    """One writer per file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            _cut_torn_line(path)
            bring_to_disk(path.parent)
        except OSError as e:
            raise RunDirectoryError(f"cannot write {path}: {e.strerror}") from e
        self._encoder = msgspec.json.Encoder()

    def append(self, record: Any) -> None:
        line = self._encoder.encode(record) + b"\n"
        try:
            written = self._file.write(line)
            if written != len(line):  # What a full disk does: the next line must not be glued to half of this one.
                _cut_torn_line(self.path)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as e:
            raise RunDirectoryError(f"cannot write {self.path}: {e.strerror}") from e

    def sync(self) -> None:
        """Wait until all lines are on the disk.

        Raises:
            RunDirectoryError: the disk does not take them.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as e:
            raise RunDirectoryError(f"cannot write {self.path}: {e.strerror}") from e

    def close(self) -> None:
        self._file.close()


def read_jsonl(path: Path, type: type[T]) -> Iterator[T]:
    """The records of `path`, none where the file is missing.

    Raises:
        RunDirectoryError: it cannot be read, or a line other than a torn last one is not a `type`.
    """
    decoder = msgspec.json.Decoder(type)
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    except OSError as e:
        raise RunDirectoryError(f"{path} cannot be read: {e.strerror}") from e
    with file:
        for number, line in _numbered(file):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as e:
                raise RunDirectoryError(f"{path}, line {number} cannot be read: {e}") from e


def read_lines(path: Path, called: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that a user has made, with their numbers; empty ones are passed over.

    Args:
        path: the file.
        called: what it is in the error, such as `corpus a.jsonl`.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield from ((number, line) for number, line in _numbered(file) if line.strip())
    except OSError as e:
        raise ConfigError(f"{called} cannot be read: {e.strerror}") from e


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines from number 1, without the byte order mark that some editors put first."""
    for number, line in enumerate(lines, 1):
        yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def bring_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk. Raises `OSError` where it cannot be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut_torn_line(path: Path) -> None:
    with open(path, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            step = min(end, 1 << 16)
            file.seek(end - step)
            at = file.read(step).rfind(b"\n")
            if at >= 0:
                end = end - step + at + 1
                break
            end -= step
        if end != size:
            file.truncate(end)
