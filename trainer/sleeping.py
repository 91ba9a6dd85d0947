"""Engines that sleep while the learner needs the memory of their card.

What always holds: while they sleep no request is sent to them, no version handed over and none of them started; however
the learner fares, they are woken; one that does not sleep or wake is ended, and started anew once the learner is done.
"""

import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio

from moonmill.agents.client import InferenceClient
from moonmill.trainer.endpoints import Endpoint, Note


class Sleeping:
    """Who sleeps, and who waits for that.

    Args:
        living: the engines that the run has not given up.
        clients: theirs.
        note: told how long they slept.
    """

    def __init__(self, living: Collection[Endpoint], clients: Collection[InferenceClient], note: Note) -> None:
        self._living = living
        self._clients = clients
        self._note = note
        self._awake = anyio.Event()
        self._awake.set()
        self._held = 0
        self._changed = anyio.Event()
        self.handing_over = anyio.Lock()
        """Held while a version is handed over, and while they sleep."""

    def notify(self) -> None:
        """An engine is up, or no more, or given up."""
        self._changed.set()
        self._changed = anyio.Event()

    async def hold_start(self) -> None:
        """Wait until an engine may be started: beside a learner at work there may be no room for it."""
        self._held += 1
        try:
            self.notify()
            await self._awake.wait()
        finally:
            self._held -= 1

    @asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """Have all of them sleep; within itself it does nothing."""
        if not self._awake.is_set():
            yield
            return
        async with self.handing_over:
            self._awake = anyio.Event()
            for client in self._clients:
                client.pause()
            try:
                begin = time.monotonic()
                while sum(not endpoint.up for endpoint in self._living) > self._held:
                    await self._changed.wait()  # A start that goes on is waited for: it has a bound of its own.
                falling = time.monotonic()
                await self._each(Endpoint.sleep)
                asleep = time.monotonic()
                yield
                waking = time.monotonic()
            finally:
                await self._each(Endpoint.wake_up)
                self._awake.set()
                for client in self._clients:
                    client.resume()
        end = time.monotonic()
        self._note(
            "engine_slept",
            seconds=waking - asleep,
            seconds_wait=falling - begin,
            seconds_sleep=asleep - falling,
            seconds_wake=end - waking,
        )

    async def _each(self, change: Callable[[Endpoint], Coroutine[Any, Any, None]]) -> None:
        async with anyio.create_task_group() as group:
            for endpoint in self._living:
                if endpoint.up:
                    group.start_soon(change, endpoint)
