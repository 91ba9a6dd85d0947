"""Ctrl-C and SIGTERM, from a run's first moment to the end of the process.

A second press often comes while the process is already ending. It must not kill it there: the exit code and what is on
the terminal are those of the first.
"""

import atexit
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopAsked(KeyboardInterrupt):
    """One of the signals came.

    A class of its own: where a bare `KeyboardInterrupt` has passed through an `exec`, as imports use it, Python ends
    the process by the signal although it was caught.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Either signal raises `StopAsked` inside. When the interpreter ends they change nothing any more."""
    # Only an ignored signal stays so until the process is gone: Python resets other handlers long before.
    atexit.unregister(ignore)
    atexit.register(ignore)
    before = {number: signal.signal(number, _interrupt) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """From now on neither signal changes anything."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise StopAsked
