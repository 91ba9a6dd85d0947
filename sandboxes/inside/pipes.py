"""A call under way, and its pipes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from moonmill.sandboxes.inside.frames import CHUNK, TRUNCATED
from moonmill.sandboxes.inside.processes import all_processes, living

_MOST_UNREAD = 1 << 20
"""Bytes taken from a pipe after its command has ended: no pipe holds more, but others may go on writing."""


class Call:
    """One command, or one thing done to files. Raises `OSError` where there are no pipes for it."""

    def __init__(self, number: int, spec: dict[str, Any]) -> None:
        self.number = number
        self.pid = 0
        self.fds: list[int] = []
        """Our ends: stdin, stdout, stderr, and the note that tells why it could not be; -1 where there is none."""
        self.theirs: list[int] = []
        try:
            for is_input, wanted in ((True, spec["input"]), (False, True), (False, True), (False, True)):
                ends = os.pipe() if wanted else (-1, -1)
                self.fds.append(ends[is_input])
                self.theirs.append(ends[not is_input])
            self.before = living(all_processes())
        except OSError:
            _close(self.fds + self.theirs)
            raise
        self.stdin, self.stdout, self.stderr, self.note = self.fds
        self.left = {self.stdout: spec["limit"], self.stderr: spec["limit"]}
        self.said = {self.stdout: bytearray(), self.stderr: bytearray()}
        """What the host is to be told, by file descriptor."""
        self.started = time.monotonic()
        self.deadline = self.started + spec["timeout"]
        self.waiting = bytearray()
        """Input that it has not taken yet."""
        self.input_over = False
        self.refusal = b""
        self.flags = 0

    def keep(self, fd: int, data: bytes) -> int:
        """Keep what it says, as far as that is wanted; returns how many bytes there are to tell."""
        kept = data[: self.left[fd]]
        self.left[fd] -= len(kept)
        if len(kept) < len(data):
            self.flags |= TRUNCATED
        self.said[fd] += kept
        return len(self.said[fd])

    def taken(self, fd: int) -> list[bytes]:
        """What there is to tell, in pieces; it is not kept any more."""
        said, self.said[fd] = bytes(self.said[fd]), bytearray()
        return [said[at : at + CHUNK] for at in range(0, len(said), CHUNK)]

    def fork(self) -> None:
        """Make the process that becomes it, where `pid` stays 0. Raises `OSError` where there cannot be another."""
        try:
            self.pid = os.fork()
        except OSError:
            _close(self.fds + self.theirs)
            raise

    def begin(self) -> None:
        """It has been started."""
        _close(self.theirs)
        for fd in self.fds:
            if fd >= 0:
                os.set_blocking(fd, False)


def read(fd: int) -> bytes | None:
    """What there is to read: None where there is nothing now, empty at the end."""
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def nothing_left_of(take: Callable[[], int]) -> None:
    """Take until there is nothing left; `take` returns how much it was."""
    total = 0
    while total < _MOST_UNREAD:
        taken = take()
        if not taken:
            return
        total += taken


def _close(fds: list[int]) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
