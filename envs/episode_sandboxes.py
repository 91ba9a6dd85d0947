"""The sandboxes of one episode: its own, and those it opens besides. All of them end with it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from moonmill.envs.clock import Clock
from moonmill.envs.elsewhere import wait_on_loop, wait_on_thread
from moonmill.envs.sandbox_handles import AsyncSandbox, BlockingSandbox, Held, Lost
from moonmill.envs.sandbox_lease import Lease
from moonmill.envs.sandbox_service import SandboxService
from moonmill.errors import EnvCodeError, MoonmillError
from moonmill.sandboxes import SandboxSpec


class EpisodeSandboxes:
    """What an episode knows of its sandboxes."""

    def __init__(self) -> None:
        self.spec: SandboxSpec | None = None
        """What its own was opened with."""
        self.seconds = 0.0
        """Waited for sandboxes, so far."""
        self.lost: MoonmillError | None = None
        """The first error of ours that a sandbox has raised: the rollout fails, whatever became of it since."""
        self.clocks: list[Clock] = []
        """Of limits that stand still while one is waited for."""
        self._own: Held | None = None
        self._leases: set[Lease] = set()
        self._are_over = False

    def own(self, spec: SandboxSpec) -> BlockingSandbox:
        """The episode's own, in place of the one it may have had; opened when it is first needed."""
        if self._own is not None:
            wait_on_thread(self._own.lease.close)
            self._leases.discard(self._own.lease)
        self.spec, self._own = spec, self.held(spec, further=False)
        return BlockingSandbox(self._own)

    def open_own(self) -> None:
        """Open the episode's own, if it has one, unless that has been done. In synchronous code."""
        if self._own is not None:
            self._own.open()

    def held(self, spec: SandboxSpec, *, further: bool, lost: Lost | None = None) -> Held:
        """One that is not opened yet.

        Args:
            spec: what it is like.
            further: the episode has one already.
            lost: told of errors of ours, in place of the episode.
        """
        lease = SandboxService.current().lease(spec, further=further)
        self._leases.add(lease)  # before it is looked whether all is over: so none is opened that nobody closes
        if self._are_over:
            self._leases.discard(lease)
            raise EnvCodeError("a sandbox was asked for after the end of its episode")
        return Held(lease, self, lost or self.lose)

    def close(self) -> None:
        """Take all of them away, in synchronous code."""
        for lease in self._last():
            wait_on_thread(lease.close)
            self._leases.discard(lease)

    async def close_there(self) -> None:
        """Take all of them away, in asynchronous code."""
        for lease in self._last():
            await wait_on_loop(lease.close)
            self._leases.discard(lease)

    def release(self, lease: Lease) -> None:
        """One has been closed."""
        self._leases.discard(lease)

    def lose(self, error: MoonmillError) -> None:
        """Remember an error of ours. What is still being asked when all are taken away loses nothing."""
        if not self._are_over:
            self.lost = self.lost or error

    def raise_if_lost(self) -> None:
        """Raise what was lost, though the author's code may have caught it."""
        if self.lost is not None:
            raise self.lost

    def begin_anew(self) -> None:
        """Another episode of the same environment."""
        self.spec = self.lost = self._own = None
        self._are_over = False

    def _last(self) -> tuple[Lease, ...]:
        self._are_over = True
        return tuple(self._leases)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is done inside is a waiting for a sandbox: no limit of the episode goes on meanwhile."""
        begin = time.monotonic()
        try:
            with self.standing_still():
                yield
        except MoonmillError as e:
            self.lose(e)
            raise
        finally:
            self.seconds += time.monotonic() - begin

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """No limit of the episode goes on meanwhile."""
        clocks = tuple(self.clocks)
        for clock in clocks:
            clock.stop()
        try:
            yield
        finally:
            for clock in clocks:
                clock.go_on()


class FurtherSandbox:
    """What `open_sandbox` gives: `with` it in synchronous code, `async with` it in asynchronous code."""

    def __init__(self, sandboxes: EpisodeSandboxes, spec: SandboxSpec, may_be_lost: bool) -> None:
        self._sandboxes = sandboxes
        self._spec = spec
        self._lost = _judged_by_author if may_be_lost else None
        self._held: list[Held] = []

    def __enter__(self) -> BlockingSandbox:
        held = self._sandboxes.held(self._spec, further=True, lost=self._lost)
        held.open()
        self._held.append(held)
        return BlockingSandbox(held)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._held.pop().lease
        wait_on_thread(lease.close)
        self._sandboxes.release(lease)

    async def __aenter__(self) -> AsyncSandbox:
        held = self._sandboxes.held(self._spec, further=True, lost=self._lost)
        await held.open_there()
        self._held.append(held)
        return AsyncSandbox(held)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._held.pop().lease
        await wait_on_loop(lease.close)
        self._sandboxes.release(lease)


def _judged_by_author(error: MoonmillError) -> None: ...
