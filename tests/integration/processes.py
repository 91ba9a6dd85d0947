"""Processes and files as they are seen from outside: who is there, and what is written just now."""

import ctypes
import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.integration.conftest import DEADLINE

_CREATE, _MODIFY = 0x100, 0x2
"""Linux' numbers, in `sys/inotify.h`."""
_EVENT = struct.Struct("iIII")


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> bool:
    """Wait until something holds; False where a process ended first."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end, "waited too long for a moment to come"
        time.sleep(0.005)
    return True


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int, module: str) -> list[int]:
    """Children of a process that run a module; those that have ended have no command line."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return [child for child in found if module in _read(Path(f"/proc/{child}/cmdline"))]


def marked(mark: str) -> list[str]:
    """Processes that live and have the mark in their environment, by pid and command line."""
    folders = (folder for folder in Path("/proc").iterdir() if folder.name.isdecimal())
    return [f"{f.name} {_read(f / 'cmdline')[:200]}" for f in folders if mark in _read(f / "environ").split(" ")]


def _read(file: Path) -> str:
    """A file in /proc, its parts parted by spaces; nothing of a process that has ended."""
    try:
        return file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@contextmanager
def watching(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Yields a function that waits, 0.1 s at most, and gives the names of what was made or written in a folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init()
    try:
        if libc.inotify_add_watch(handle, bytes(folder), _CREATE | _MODIFY) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

        def changes() -> list[str]:
            names, at = [], 0
            data = os.read(handle, 65536) if select.select([handle], [], [], 0.1)[0] else b""
            while at < len(data):
                *_, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                names.append(data[at - length : at].rstrip(b"\0").decode())
            return names

        yield changes
    finally:
        os.close(handle)
