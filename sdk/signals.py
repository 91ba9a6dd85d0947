"""Ctrl-C and SIGTERM, from the first line of ours to the end of the process.

A second press often comes while the process is already ending. It must not kill it there: the exit code and what is on
the terminal are those of the first.
"""

import atexit
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from anyio import CancelScope

T = TypeVar("T")
_asked = False

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopAsked(KeyboardInterrupt):
    """One of the signals came.

    A class of its own: where a bare `KeyboardInterrupt` has passed through an `exec`, as imports use it, Python ends
    the process by the signal although it was caught.
    """


def end_when_asked() -> None:
    """From now on either signal ends the process at once: while there is nothing to close, as in the first imports.

    An exception that is raised inside an import can be lost there.
    """
    for number in STOPPING:
        signal.signal(number, _end)


@contextmanager
def interruptible() -> Iterator[None]:
    """Either signal raises `StopAsked` inside. When the interpreter ends they change nothing any more."""
    # Only an ignored signal stays so until the process is gone: Python resets other handlers long before.
    atexit.unregister(ignore)
    atexit.register(ignore)
    global _asked
    if signal.getsignal(STOPPING[0]) is not _interrupt:
        _asked = False
    before = {number: signal.signal(number, _interrupt) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_if_asked() -> None:
    """Raise `StopAsked` where a signal has come: what it raised can get lost within an import."""
    if _asked:
        raise StopAsked


def run_until_stopped(work: Callable[[], Awaitable[T]]) -> T:
    """Run asynchronous work on an event loop of its own. A signal cancels it, and only then raises `StopAsked`.

    Raised in the midst of an event loop it would leave worker threads behind.
    """
    import anyio

    async def main() -> T:
        with anyio.open_signal_receiver(*STOPPING) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_when_asked, signals, group.cancel_scope)
                result = await work()
                group.cancel_scope.cancel()
                return result
        raise StopAsked

    return anyio.run(main)


def ignore() -> None:
    """From now on neither signal changes anything."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


async def _cancel_when_asked(signals: AsyncIterator[signal.Signals], scope: "CancelScope") -> None:
    async for _ in signals:
        scope.cancel()


def _end(number: int, frame: object) -> NoReturn:
    with suppress(OSError):  # stderr is closed
        os.write(2, b"stopped\n")
    os._exit(1)


def _interrupt(number: int, frame: object) -> NoReturn:
    global _asked
    _asked = True
    raise StopAsked
