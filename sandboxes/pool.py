"""Sandboxes for many episodes: some made ready beforehand, not too many at once, first come, first served.

What always holds: a sandbox is handed out once; at most `max_open` are in use, and `prewarm` ready beside them; making
one is tried again after a failure, what is done in one never is; one that fails in the background harms nobody.
"""

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from moonmill.sandboxes.errors import SandboxUnavailableError
from moonmill.sandboxes.sandbox import Sandbox, SandboxProvider
from moonmill.sandboxes.supervised import give
from moonmill.sandboxes.types import SandboxSpec

_ATTEMPTS = 3
_FIRST_BACKOFF = 0.25
"""Seconds before a creation is tried again; it doubles with each further one."""
_CREATIONS = 4
"""Creations under way at once. They are bound by the processor."""
_OLDEST = 0.25
"""Share of its lifetime that a ready sandbox may have spent waiting."""
_KINDS = 4
"""Specs of which some are kept ready: the latest ones."""


class PoolMetrics(Struct, frozen=True):
    """Of a pool, since it was entered."""

    waiting: int
    """Episodes that wait for a sandbox now."""
    in_use: int
    ready: int
    """Made beforehand, and handed to nobody yet."""
    created: int
    reused: int
    """Of those in use so far, how many stood ready."""
    failed: int
    """Creations that failed, those that were tried again among them."""


class _Entry:
    """One sandbox, in a task of its own: whoever opens its context must leave it."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.known = anyio.Event()
        """It is open, or cannot be."""
        self.over = anyio.Event()
        """Nobody needs it any more."""
        self.closed = anyio.Event()
        self.scope = anyio.CancelScope()
        """Of all that is done for it."""
        self.sandbox: Sandbox | None = None
        self.error: Exception | None = None
        self.opened_at = 0.0

    def is_good(self) -> bool:
        """Whether it can be handed out."""
        if self.error is not None or (self.sandbox is not None and self.sandbox.lost):
            return False
        age = anyio.current_time() - self.opened_at
        return self.sandbox is None or age < _OLDEST * self.spec.limits.lifetime


class SandboxPool:
    """A provider in front of another one. To be used as an async context, which closes whatever is open.

    Args:
        provider: makes the sandboxes; it is entered and left with the pool.
        max_open: sandboxes in use at once.
        prewarm: sandboxes that are kept ready of each spec that is asked for.
        open_timeout: seconds until somebody who waits for a place, or for the making of a sandbox, gives up.

    Raises:
        ValueError: one of them cannot be.
    """

    def __init__(
        self, provider: SandboxProvider, *, max_open: int = 64, prewarm: int = 0, open_timeout: float = 600.0
    ) -> None:
        if max_open < 1:
            raise ValueError(f"max_open is {max_open!r:.100}, but should be 1 or more")
        if prewarm < 0:
            raise ValueError(f"prewarm is {prewarm!r:.100}, but should be 0 or more")
        if not open_timeout > 0:
            raise ValueError(f"open_timeout is {open_timeout!r:.100}, but should be seconds, more than 0")
        self.name = provider.name
        self._provider = provider
        self._prewarm = prewarm
        self._open_timeout = open_timeout
        self._max_open = max_open
        self._places: anyio.Semaphore
        self._creations: anyio.Semaphore
        self._group: TaskGroup | None = None
        self._stack = AsyncExitStack()
        self._ready: dict[bytes, deque[_Entry]] = {}
        self._waiting = self._in_use = self._created = self._reused = self._failed = 0

    async def __aenter__(self) -> Self:
        self._places = anyio.Semaphore(self._max_open)
        self._creations = anyio.Semaphore(_CREATIONS)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._provider)
            self._group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def enforces(self) -> Mapping[str, str]:
        """As the provider."""
        return self._provider.enforces()

    def require(self, spec: SandboxSpec) -> None:
        """As the provider."""
        self._provider.require(spec)

    def metrics(self) -> PoolMetrics:
        """How it stands."""
        ready = sum(entry.sandbox is not None for entries in self._ready.values() for entry in entries)
        return PoolMetrics(self._waiting, self._in_use, ready, self._created, self._reused, self._failed)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """A sandbox that nobody has had before. Files of the spec are written when it is handed out.

        Raises:
            SandboxSpecError: the provider cannot honour the spec.
            SandboxUnavailableError: none could be had in `open_timeout`, or the pool is not entered, or left.
        """
        self._entered()
        self._provider.require(spec)
        async with self._place(), self._entry(msgspec.structs.replace(spec, files={})) as sandbox:
            await give(sandbox, spec.files)
            yield sandbox

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """The right to use one."""
        self._waiting += 1
        try:
            with anyio.move_on_after(self._open_timeout) as scope:
                await self._places.acquire()
        finally:
            self._waiting -= 1
        if scope.cancelled_caught:
            raise SandboxUnavailableError(
                f"no sandbox became free in {self._open_timeout:g} s: all {self._max_open} are in use (max_open)"
            )
        self._in_use += 1
        try:
            yield
        finally:
            self._in_use -= 1
            self._places.release()

    @asynccontextmanager
    async def _entry(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """One that stood ready, or a new one."""
        entry = self._take_ready(spec)
        try:
            self._make_ready(spec)
            with anyio.move_on_after(self._open_timeout) as scope:
                await entry.known.wait()
            if scope.cancelled_caught:
                raise SandboxUnavailableError(f"no sandbox could be made in {self._open_timeout:g} s")
            if entry.error is not None:
                raise entry.error
            if entry.sandbox is None:
                raise SandboxUnavailableError("the pool was closed meanwhile")
            yield entry.sandbox
        finally:
            entry.over.set()
            if not entry.known.is_set():
                entry.scope.cancel()  # nobody waits for its making any more
            with anyio.CancelScope(shield=True):
                await entry.closed.wait()  # providers bound what they do to close one

    def _take_ready(self, spec: SandboxSpec) -> _Entry:
        ready = self._ready.get(msgspec.json.encode(spec), ())
        while ready:
            entry = ready.popleft()
            if entry.is_good():
                self._reused += entry.sandbox is not None
                return entry
            entry.over.set()
        return self._begin(spec)

    def _make_ready(self, spec: SandboxSpec) -> None:
        """Keep some like this one ready; of specs that are no longer asked for, none."""
        if not self._prewarm:
            return
        key = msgspec.json.encode(spec)
        ready = self._ready[key] = self._ready.pop(key, deque())  # the latest is the last
        while len(self._ready) > _KINDS:
            for entry in self._ready.pop(next(iter(self._ready))):
                entry.over.set()
        while len(ready) < self._prewarm:
            ready.append(self._begin(spec))

    def _begin(self, spec: SandboxSpec) -> _Entry:
        entry = _Entry(spec)
        self._entered().start_soon(self._keep, entry)
        return entry

    def _entered(self) -> TaskGroup:
        if self._group is None:
            raise SandboxUnavailableError("the pool is used outside of its `async with SandboxPool(…)`")
        return self._group

    def _close(self) -> None:
        self._entered().cancel_scope.cancel()
        self._group = None
        self._ready.clear()

    async def _keep(self, entry: _Entry) -> None:
        """Open a sandbox, and close it when it is not needed any more."""
        try:
            with entry.scope:
                await self._try(entry)
        finally:
            entry.known.set()
            entry.closed.set()

    async def _try(self, entry: _Entry) -> None:
        for attempt in range(_ATTEMPTS):
            entry.error = None
            try:
                await self._open(entry)
            except SandboxUnavailableError as e:
                self._failed += 1
                entry.error = e
            except Exception as e:
                entry.error = e
            if entry.error is None or entry.sandbox is not None or not self._again(entry, attempt):
                break
            await anyio.sleep(_FIRST_BACKOFF * 2**attempt)

    def _again(self, entry: _Entry, attempt: int) -> bool:
        retry = isinstance(entry.error, SandboxUnavailableError) and attempt < _ATTEMPTS - 1
        return retry and not entry.over.is_set()

    async def _open(self, entry: _Entry) -> None:
        async with AsyncExitStack() as stack:
            async with self._creations:
                if entry.over.is_set():
                    return
                entry.sandbox = await stack.enter_async_context(self._provider.open(entry.spec))
            self._created += 1
            entry.opened_at = anyio.current_time()
            entry.known.set()
            await entry.over.wait()
