"""Where a run's time goes: how long generation and learning went on, and how long both at once."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct


class Spans(Struct, frozen=True):
    """Seconds, since the meter started."""

    wall: float
    generating: float
    learning: float
    both: float

    def since(self, before: "Spans") -> "Spans":
        """What has come after `before`."""
        return Spans(
            self.wall - before.wall,
            self.generating - before.generating,
            self.learning - before.learning,
            self.both - before.both,
        )


class Meter:
    """Counts seconds by what is going on. Any number of `generating` blocks may be open at once.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._last = clock()
        self._open = {"generating": 0, "learning": 0}
        self._seconds = {"generating": 0.0, "learning": 0.0, "both": 0.0}

    @contextmanager
    def generating(self) -> Iterator[None]:
        """An episode is in flight."""
        with self._during("generating"):
            yield

    @contextmanager
    def learning(self) -> Iterator[None]:
        """The learner is at work."""
        with self._during("learning"):
            yield

    def spans(self) -> Spans:
        self._advance()
        seconds = self._seconds
        return Spans(self._last - self._start, seconds["generating"], seconds["learning"], seconds["both"])

    @contextmanager
    def _during(self, name: str) -> Iterator[None]:
        self._advance()
        self._open[name] += 1
        try:
            yield
        finally:
            self._advance()
            self._open[name] -= 1

    def _advance(self) -> None:
        now = self._clock()
        elapsed, self._last = now - self._last, now
        active = [name for name, count in self._open.items() if count]
        for name in active:
            self._seconds[name] += elapsed
        if len(active) == len(self._open):
            self._seconds["both"] += elapsed
