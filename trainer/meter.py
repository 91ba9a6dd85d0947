"""Where a run's time goes: how long generation and learning went on, how long both at once, and who waited for whom.

There are `async.max_concurrent` slots for episodes. One without an episode waits: for weights that are being handed
over, for the learner that is to make them, or else for the slowest episodes of a batch. One with an episode may wait
too: for the engine, a tool, a sandbox.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from moonmill.types import Timings


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


class Waits(Struct, frozen=True, omit_defaults=True):
    """Seconds waited, by cause. All but the first are of an average slot: 10 of 60 seconds says that a sixth of the
    slots waited throughout, or all of them for 10 seconds."""

    rollouts: float = 0.0
    """The learner, for a batch of finished rollouts."""
    stragglers: float = 0.0
    """Free slots, while the learner waits as well: nothing more may start before the batch is full, and what is missing
    are its slowest episodes."""
    learner: float = 0.0
    """Free slots, while the learner is at work: generation is as far ahead of it as `async.max_staleness` allows."""
    handover: float = 0.0
    """Free slots, while new weights are on their way to the engine."""
    queue: float = 0.0
    """Episodes, for the first token of their turns: the engine's queue, and the computation of the prompt."""
    tools: float = 0.0
    """Episodes, for the environment: tools, `reset`, `step`, and rewards. Counted when an episode ends."""
    sandbox: float = 0.0
    """Episodes, for sandboxes; those opened within a tool or a reward are in `tools` as well. Counted likewise."""

    def since(self, before: "Waits") -> "Waits":
        """What has come after `before`."""
        earlier = asdict(before)
        return Waits(**{name: value - earlier[name] for name, value in asdict(self).items()})


Cause = Literal["stragglers", "learner", "handover"]


class Meter:
    """Counts seconds by what is going on. Any number of `generating` blocks may be open at once.

    Args:
        slots: episodes that can be in flight.
        clock: seconds, monotonic.
    """

    def __init__(self, slots: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = slots
        self._clock = clock
        self._start = self._last = clock()
        self._open = {"generating": 0, "learning": 0, "rollouts": 0}
        self._seconds = {"generating": 0.0, "learning": 0.0, "both": 0.0, "rollouts": 0.0}
        self._free = 0
        self._cause: Cause = "stragglers"
        self._waits = {"stragglers": 0.0, "learner": 0.0, "handover": 0.0, "tools": 0.0, "sandbox": 0.0}

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

    @contextmanager
    def waiting_for_rollouts(self) -> Iterator[None]:
        """The learner has nothing to do."""
        with self._during("rollouts"):
            yield

    def leave_free(self, slots: int, cause: Cause) -> None:
        """From now on so many slots are without an episode, for this cause."""
        self._advance()
        self._free, self._cause = slots, cause

    def played(self, timings: Timings) -> None:
        """An episode has ended."""
        self._waits["tools"] += timings.environment + timings.scoring
        self._waits["sandbox"] += timings.sandbox

    def spans(self) -> Spans:
        self._advance()
        seconds = self._seconds
        return Spans(self._last - self._start, seconds["generating"], seconds["learning"], seconds["both"])

    def waits(self, queued: float = 0.0) -> Waits:
        """Since the meter started.

        Args:
            queued: seconds that all requests together have waited for the engine.
        """
        self._advance()
        of_a_slot = {cause: seconds / self._slots for cause, seconds in self._waits.items()}
        return Waits(rollouts=self._seconds["rollouts"], queue=queued / self._slots, **of_a_slot)

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
        for name in (name for name, count in self._open.items() if count):
            self._seconds[name] += elapsed
        if self._open["generating"] and self._open["learning"]:
            self._seconds["both"] += elapsed
        self._waits[self._cause] += elapsed * self._free
