"""What is printed while a live display stands on the terminal appears above it, one whole line after the other.

That holds for the whole process and the programs it starts: file descriptors 1 and 2 lead into a pipe meanwhile.
"""

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_SECONDS = 0.1
_END_SECONDS = 2.0
_CHUNK = 1 << 20
"""More than a pipe holds: one read empties it."""
_LONGEST = 1 << 16
"""Bytes without a line break that are kept."""


@contextmanager
def lines_to(show: Callable[[str], None]) -> Iterator[None]:
    """Inside, every line that is printed to stdout or stderr is given to `show`, from a thread."""
    read, write = os.pipe()
    kept = {fd: os.dup(fd) for fd in (1, 2)}
    over = threading.Event()
    reader = threading.Thread(target=_pass_on, args=(read, show, over), name="moonmill-printed", daemon=True)
    for fd in kept:
        os.dup2(write, fd)
    os.close(write)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        for fd, old in kept.items():
            os.dup2(old, fd)
            os.close(old)
        over.set()
        reader.join(_END_SECONDS)


def _pass_on(read: int, show: Callable[[str], None], over: threading.Event) -> None:
    """Until all writers have gone, or `over`: a program that was left behind may hold the pipe for ever."""
    rest = b""
    while True:
        last = over.is_set()
        if select.select([read], [], [], 0 if last else _POLL_SECONDS)[0]:
            data = os.read(read, _CHUNK)
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_LONGEST:]
            for line in lines:
                show(_text(line))
            if not data:
                break
        if last:
            break
    if rest:
        show(_text(rest))
    os.close(read)


def _text(line: bytes) -> str:
    """As a terminal would leave it: a progress bar writes over its line again and again."""
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
