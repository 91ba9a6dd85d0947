"""Where sandboxes are: an event loop on a thread of its own, in the background.

Provider and sandboxes belong to that loop. So neither the trainer's loop nor authors' code can hold a sandbox up, and
nobody has to know on which thread or loop a sandbox is used: what is asked of it is done here. `elsewhere` is how one
waits for it; everything asked for is answered, be it that the host has ended.
"""

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from moonmill.blame import own_error, said_of
from moonmill.config import SandboxConfig
from moonmill.envs.elsewhere import CallOff, Deliver
from moonmill.envs.loop import Answer
from moonmill.errors import MoonmillError
from moonmill.sandboxes import SandboxUnavailableError
from moonmill.sandboxes.pool import SandboxPool
from moonmill.sandboxes.providers import make_provider

if TYPE_CHECKING:
    from moonmill.envs.sandbox_lease import Lease

_START_SECONDS = 120.0
"""Until the provider is ready: it looks at what the host allows."""


class SandboxFigures(Struct, frozen=True, omit_defaults=True):
    """How sandboxes stand: two figures of now, three that only grow."""

    waiting: int = 0
    """Asked for, and not there yet."""
    in_use: int = 0
    """Open, for an episode or a grader."""
    created: int = 0
    """Made, also those that stand ready for nobody yet."""
    reused: int = 0
    """Stood ready when they were asked for."""
    failed: int = 0
    """Could not be made, each attempt counted, or not be taken away in order."""

    def since(self, before: "SandboxFigures") -> "SandboxFigures":
        """The same, with what has come after `before` of the three. One that is smaller has begun anew."""
        if self.created < before.created:
            before = SandboxFigures()
        grown = (self.created - before.created, self.reused - before.reused, self.failed - before.failed)
        return SandboxFigures(self.waiting, self.in_use, *grown)


class SandboxHost:
    """One provider with its pool. It starts at once.

    Args:
        config: which provider, and how many sandboxes.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self.pool: SandboxPool
        self.group: TaskGroup
        self.leases: set[Lease] = set()
        """Those that are open or being opened."""
        self._places: dict[bool, anyio.Semaphore]
        self._process = os.getpid()
        self._early: list[_Request] | None = []
        """What was asked for before the provider was ready."""
        self._lock = threading.RLock()
        """Taken again by the same thread where the garbage collector, in the midst of it, finds a sandbox to close."""
        self._asked: set[_Request] = set()
        self._ended: MoonmillError | None = None
        self._loop: asyncio.AbstractEventLoop
        self._context: Context
        self._stop_asked: anyio.Event
        self._starting: anyio.CancelScope
        """Bounds the start of the provider."""
        started: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(started,), name="moonmill-sandboxes", daemon=True)
        self._thread.start()
        started.get()

    @property
    def has_ended(self) -> bool:
        """Nothing more can be asked for."""
        return self._ended is not None

    def figures(self) -> SandboxFigures:
        """As they are now."""
        leases = tuple(self.leases)
        in_use = sum(lease.is_open for lease in leases)
        if self._early is not None:  # There is no pool yet.
            return SandboxFigures(waiting=len(self._early))
        made = self.pool.metrics()
        return SandboxFigures(len(leases) - in_use, in_use, made.created, made.reused, made.failed)

    def begin(
        self,
        work: Callable[["SandboxHost"], Awaitable[Any]],
        deliver: Deliver,
        *,
        otherwise: Answer | None = None,
        group: Callable[[], TaskGroup] | None = None,
    ) -> CallOff:
        """Have something done here, from any thread.

        Args:
            work: what.
            deliver: is given the answer.
            otherwise: the answer where it is not done because the host ends.
            group: gives the group it is done in, or raises what is to be the answer; by default the host's own.
        """
        if os.getpid() != self._process:
            forked = SandboxUnavailableError("a forked process has none of its parent's sandboxes")
            deliver(otherwise or Answer(error=forked))
            return _nothing
        request = _Request(work, deliver, otherwise, group or (lambda: self.group))
        with self._lock:
            is_taken = self._ended is None
            if is_taken:
                self._asked.add(request)
        if is_taken:
            self._soon(self._take, request)
        else:
            deliver(otherwise or Answer(error=self._why()))
        return partial(self._soon, request.call_off)

    def end(self, seconds: float) -> None:
        """Take all sandboxes away, and wait for that so long. Not for an event loop to call."""
        self._soon(self._stop, seconds)
        self._thread.join(seconds + 1)

    def ours(self, error: BaseException) -> MoonmillError:
        """What a provider raises that is none of ours is its failure to provide."""
        told = SandboxUnavailableError(f"the provider {self.config.provider} raised {said_of(error)}")
        return own_error(error) or told

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # The loop has ended, and has answered everything.
            self._loop.call_soon_threadsafe(call, *args, context=self._context)

    def _run(self, started: "SimpleQueue[None]") -> None:
        why: MoonmillError = SandboxUnavailableError("all sandboxes of this process have been taken away")
        try:
            anyio.run(self._live, started, backend="asyncio")
        except BaseException as e:
            why = self.ours(e)
        with self._lock:
            self._ended = why
        for request in tuple(self._asked):
            self._settle(request, request.otherwise or Answer(error=self._why()))

    def _why(self) -> MoonmillError:
        """Anew for each who is told."""
        assert self._ended is not None
        return type(self._ended)(*self._ended.args)

    # On the loop from here on.

    @asynccontextmanager
    async def place(self, further: bool) -> AsyncIterator[None]:
        """The right to have one. Whoever has one must not wait for those that wait for their first."""
        with anyio.move_on_after(self.config.open_timeout) as scope:
            await self._places[further].acquire()
        if scope.cancelled_caught:
            raise SandboxUnavailableError(
                f"no sandbox became free in {self.config.open_timeout:g} s (sandbox.open_timeout): all "
                f"{self.config.max_open} are in use (sandbox.max_open)"
            )
        try:
            yield
        finally:
            self._places[further].release()

    async def _live(self, started: "SimpleQueue[None]") -> None:
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._stop_asked, self._starting = anyio.Event(), anyio.CancelScope()
        # Those that episodes open besides their own have places of their own, else all could wait for each other.
        self._places = {further: anyio.Semaphore(self.config.max_open) for further in (False, True)}
        started.put(None)
        config = self.config
        pool = SandboxPool(
            make_provider(config.provider),
            max_open=len(self._places) * config.max_open,
            prewarm=config.prewarm,
            open_timeout=config.open_timeout,
        )
        with self._starting as scope:
            scope.deadline = anyio.current_time() + _START_SECONDS
            async with pool as self.pool:
                scope.deadline = math.inf
                async with anyio.create_task_group() as self.group:
                    early, self._early = self._early or [], None
                    for request in early:
                        self._take(request)
                    await self._stop_asked.wait()
                    for lease in tuple(self.leases):
                        lease.ask_to_close()
                self._early = []  # What is asked for from here on is answered when all is over.
        if scope.cancelled_caught and not self._stop_asked.is_set():
            raise SandboxUnavailableError(f"{config.provider} was not ready in {_START_SECONDS:g} s")

    def _stop(self, seconds: float) -> None:
        self._stop_asked.set()
        if self._early is None:
            self.group.cancel_scope.deadline = anyio.current_time() + seconds
        elif self._starting.deadline < math.inf:
            self._starting.cancel()

    def _take(self, request: "_Request") -> None:
        if self._early is not None:
            self._early.append(request)
            return
        try:
            group = request.group()
        except MoonmillError as e:
            self._settle(request, Answer(error=e))
        else:
            group.start_soon(self._serve, request)

    async def _serve(self, request: "_Request") -> None:
        answer = request.otherwise or Answer(error=SandboxUnavailableError("the sandbox was taken away meanwhile"))
        try:
            with anyio.CancelScope() as request.scope:
                if request.is_off:
                    request.scope.cancel()
                try:
                    answer = Answer(await request.work(self))
                except Exception as e:
                    answer = Answer(error=e)
        finally:
            self._settle(request, answer)

    def _settle(self, request: "_Request", answer: Answer) -> None:
        with self._lock:
            if request not in self._asked:
                return
            self._asked.remove(request)
        request.deliver(answer)


class _Request:
    """Something to do in the host, on its way there and back."""

    def __init__(
        self,
        work: Callable[[SandboxHost], Awaitable[Any]],
        deliver: Deliver,
        otherwise: Answer | None,
        group: Callable[[], TaskGroup],
    ) -> None:
        self.work = work
        self.deliver = deliver
        self.otherwise = otherwise
        self.group = group
        self.is_off = False
        self.scope: anyio.CancelScope | None = None

    def call_off(self) -> None:
        """Nobody waits for it any more. On the host's loop."""
        self.is_off = True
        if self.scope is not None:
            self.scope.cancel()


def _nothing() -> None: ...
