"""Hands the newest weights to the engine while the learner is already at its next step.

Versions the learner makes while a hand-over goes on are not queued: only the newest is handed over next.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import anyio


class Target(Protocol):
    """Where versions go."""

    async def publish(self, version: int, weights: Path, *, changed: bool, probe: float | None) -> None:
        """Make `version` the one that is sampled from.

        Its weights are others than the last one's if `changed`, and the learner answers the probe with `probe`.
        """
        ...

    def in_flight(self) -> tuple[int, ...]:
        """How many completions each engine is at work on."""
        ...

    def queued(self) -> float:
        """Seconds that the completions of training have waited for their first tokens so far, all together."""
        ...


class Publisher:
    """Publishes in the background.

    Args:
        target: where versions go.
        step: the learner step behind the weights in use.
        notify: called after each hand-over.
    """

    def __init__(self, target: Target, step: int, notify: Callable[[], None]) -> None:
        self.step = step
        self._notify = notify
        self._target = target
        self._offered = step
        self._next: tuple[int, int, Path, float | None] | None = None
        self._changed = False
        self._wake = anyio.Event()

    def offer(
        self, step: int, version: int, weights: Path | None, *, changed: bool, probe: float | None = None
    ) -> None:
        """New weights to hand over. A step that made no version (`weights` is None) counts as published with the
        version before it: at once, where that is in use.

        Where there was nothing to learn, weights are not `changed`. The learner answers the probe with `probe`.
        """
        self._offered = step
        if weights is None:
            if self._next is None:
                self._advance(step)
            return
        self._next = (step, version, weights, probe)
        self._changed |= changed
        self._wake.set()

    async def run(self) -> None:
        """Publish what is offered, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._next is not None:
                offered = step, version, weights, probe = self._next
                changed, self._changed = self._changed, False
                await self._target.publish(version, weights, changed=changed, probe=probe)
                if self._next == offered:
                    self._next, step = None, self._offered
                self._advance(step)

    def _advance(self, step: int) -> None:
        self.step = step
        self._notify()
