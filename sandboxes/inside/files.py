"""What is done to files, in a process of its own, as the sandbox's user: input on stdin, output on stdout."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

from moonmill.sandboxes.inside.frames import CHUNK

_KINDS = {stat.S_IFREG: b"f", stat.S_IFDIR: b"d", stat.S_IFLNK: b"l"}


def read_file(path: bytes, most: int) -> None:
    """A regular file. Of one that is larger than `most`, one byte more, which tells that there is more."""
    _refuse_irregular(os.stat(path))  # before it is opened: that alone may do something to a device
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    _refuse_irregular(os.fstat(fd))
    left = most + 1
    while left > 0:
        data = os.read(fd, min(CHUNK, left))
        if not data:
            return
        left -= len(data)
        _write_all(1, data)


def write_file(path: bytes, mode: int) -> None:
    """A regular file, whole, and the folders it is in."""
    folder = os.path.dirname(path)
    if folder:
        _make_folder(folder)
    try:
        _refuse_irregular(os.stat(path))
    except FileNotFoundError:
        pass
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    _refuse_irregular(os.fstat(fd))
    while True:
        data = os.read(0, CHUNK)
        if not data:
            break
        _write_all(fd, data)
    os.fchmod(fd, mode)


def list_files(path: bytes, recursive: bool) -> None:
    """What is in a folder: kind, size, permissions and path of each entry, ended by a NUL."""
    ahead = [(path, b"")]
    while ahead:
        folder, prefix = ahead.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                kind, name = stat.S_IFMT(info.st_mode), prefix + entry.name
                fields = _KINDS.get(kind, b"o"), info.st_size, stat.S_IMODE(info.st_mode), name
                _write_all(1, b"%b %d %d %b\0" % fields)
                if recursive and kind == stat.S_IFDIR:
                    ahead.append((entry.path, name + b"/"))


def pack(path: bytes, most: int) -> None:
    """What is in a folder, as a tar stream. Of one longer than `most`, one byte more: that tells that there is more."""
    import tarfile

    os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))  # or what is wrong with it
    out: Any = _Bounded(most + 1)
    with tarfile.open(mode="w|", fileobj=out, format=tarfile.GNU_FORMAT) as archive:
        archive.add(os.fsdecode(path), arcname=".")


class _Bounded:
    """Stdout, for so many bytes; then this process ends."""

    def __init__(self, most: int) -> None:
        self._left = most

    def write(self, data: bytes) -> None:
        _write_all(1, data[: self._left])
        self._left -= len(data)
        if self._left <= 0:
            os._exit(0)


def unpack(path: bytes) -> None:
    """A tar stream of the host's, into a folder."""
    import tarfile

    _make_folder(path)
    with open(0, "rb", closefd=False) as stream, tarfile.open(mode="r|", fileobj=stream) as archive:
        for member in archive:
            archive.extract(member, os.fsdecode(path))


def _make_folder(path: bytes) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "is no folder") from None


def _refuse_irregular(info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise OSError(errno.EISDIR, "is a directory")
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.ENODEV, "is no regular file")


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


DOABLE: dict[str, Callable[..., None]] = {
    "read": read_file,
    "write": write_file,
    "list": list_files,
    "pack": pack,
    "unpack": unpack,
}
