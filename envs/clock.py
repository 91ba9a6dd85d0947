"""A time limit that stands still while its episode waits for a sandbox: the queue is not the model's doing."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio


class Clock:
    """Of a cancel scope. `stop` and `go_on` may be called from any thread.

    Args:
        scope: has the limit as its deadline.
        soon: calls something on the event loop of the scope, as `loop.soon_here` gives it.
    """

    def __init__(self, scope: anyio.CancelScope, soon: Callable[..., Any]) -> None:
        self._soon = soon
        self._scope = scope
        self._waits = 0
        self._deadline = 0.0
        self._since = 0.0

    def stop(self) -> None:
        """A waiting begins."""
        with suppress(RuntimeError):  # The event loop has ended.
            self._soon(self._stop)

    def go_on(self) -> None:
        """A waiting has ended."""
        with suppress(RuntimeError):
            self._soon(self._go_on)

    def _stop(self) -> None:
        if not self._waits:
            self._deadline, self._scope.deadline = self._scope.deadline, math.inf
            self._since = time.monotonic()
        self._waits += 1

    def _go_on(self) -> None:
        self._waits -= 1
        if not self._waits:
            self._scope.deadline = self._deadline + time.monotonic() - self._since
