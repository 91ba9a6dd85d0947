"""What the cases are given: a provider at work, sandboxes of it that several cases share, and the host around them.

A sandbox that is shared lives in a task of its own, so that it can be opened in one case and closed after another. One
that a case has left in disorder is replaced before the next.
"""

import pickle
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Literal, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from moonmill.blame import text_of
from moonmill.sandboxes.sandbox import Sandbox, SandboxProvider
from moonmill.sandboxes.testing.case import BrokenPromiseError, Case, NotShownError, Outcome, Status
from moonmill.sandboxes.testing.host import Host
from moonmill.sandboxes.testing.lives import Leavings, after_a_kill, after_closing
from moonmill.sandboxes.testing.provider import entered, means_of, opened, require
from moonmill.sandboxes.types import SandboxLimits, SandboxSpec

ProviderFactory = Callable[[], SandboxProvider]
"""Makes a provider. What pickle can carry to another process allows the cases in which that process dies."""

Kept = Literal["common", "neighbour", "tight"]

TIGHT = SandboxLimits(memory_mib=128, pids=32, disk_mib=16)
"""The limits of the sandbox in which limits are met."""
_ROOMY = SandboxLimits(memory_mib=768, pids=128, disk_mib=192)
_CLOSING_SECONDS = 30.0
_DETAIL = 500
"""Characters of an outcome's detail."""


class _Keeper(Struct):
    """A sandbox that is kept open."""

    sandbox: Sandbox
    no_longer_wanted: anyio.Event
    closed: anyio.Event
    scope: anyio.CancelScope
    trouble: str = ""
    """What was raised when it was closed."""


class Lab:
    """A provider at work. To be used as an async context.

    Args:
        factory: makes the provider.
        image: what the sandboxes are made from; None is the provider's own.

    Raises:
        SandboxUnavailableError: it cannot be used on this host, or is not as a provider should be.
        SandboxSpecError: it does not take the specs of the check.
    """

    def __init__(self, factory: ProviderFactory, image: str | None = None) -> None:
        self.provider = factory()
        self.host = Host()
        self.means: Mapping[str, str] = {}
        """What the provider enforces, and how."""
        self.spec = SandboxSpec(image=image, limits=_ROOMY)
        self._factory = factory
        self._kept: dict[Kept, _Keeper] = {}
        self._stack = AsyncExitStack()
        self._group: TaskGroup
        self._leavings: dict[str, Leavings] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(self.host)  # first: the provider is to have the key in its environment
            await stack.enter_async_context(entered(self.provider))
            self.means = means_of(self.provider)
            for spec in (self.spec, replace(self.spec, limits=TIGHT)):
                require(self.provider, spec)
            self._group = await stack.enter_async_context(anyio.create_task_group())
            stack.push_async_callback(self.renew)
            self._stack = stack.pop_all()
        return self

    async def begin(self) -> None:
        """Open the first sandbox: where none can be had, no case could show anything."""
        await self.sandbox()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def run(self, case: Case) -> Outcome:
        """Find out whether a case holds. Whatever it raises is part of the answer."""
        status: Status = "holds"
        detail = ""
        if case.promise is not None and case.promise not in self.means:
            return Outcome(case.name, case.topic, case.statement, case.promise, "not enforced")
        begin = time.monotonic()
        try:
            with anyio.move_on_after(case.seconds) as scope:
                await case.check(self)
            if scope.cancelled_caught:
                status, detail = "broken", f"it took longer than {case.seconds:g} s"
        except NotShownError as e:
            status, detail = "not shown", str(e)
        except BrokenPromiseError as e:
            status, detail = "broken", str(e)
        except Exception as e:
            status, detail = "broken", _said(e)
        seconds = time.monotonic() - begin
        if status == "broken":
            detail = "; ".join([detail, *await self.renew()])
        line = " ".join(detail.split())
        return Outcome(case.name, case.topic, case.statement, case.promise, status, line[:_DETAIL], seconds)

    async def sandbox(self, kept: Kept = "common") -> Sandbox:
        """One of the sandboxes that cases share; opened when it is first wanted.

        Raises:
            SandboxUnavailableError: none could be made.
        """
        if kept not in self._kept:
            spec = replace(self.spec, limits=TIGHT) if kept == "tight" else self.spec
            keeper: _Keeper = await self._group.start(self._keep, spec)
            self._kept[kept] = keeper
        return self._kept[kept].sandbox

    @asynccontextmanager
    async def open(self, limits: SandboxLimits | None = None, **changes: object) -> AsyncIterator[Sandbox]:
        """A sandbox for one case alone.

        Args:
            limits: None are roomy ones.
            changes: other fields of its spec.
        """
        async with opened(self.provider, replace(self.spec, limits=limits or _ROOMY, **changes)) as sandbox:
            yield sandbox

    async def renew(self) -> list[str]:
        """Close the sandboxes that are shared; returns what went wrong. Who asks next gets new ones."""
        trouble = []
        for name in list(self._kept):
            keeper = self._kept.pop(name)
            keeper.no_longer_wanted.set()
            with anyio.move_on_after(_CLOSING_SECONDS):
                await keeper.closed.wait()
            if not keeper.closed.is_set():
                keeper.scope.cancel()
                keeper.trouble = f"it took longer than {_CLOSING_SECONDS:g} s"
            if keeper.trouble:
                trouble.append(f"closing the {name} sandbox: {keeper.trouble}")
        return trouble

    async def leavings(self, end: Literal["closes", "is killed"]) -> Leavings:
        """What is left of a sandbox after the process that held it has closed it, or was killed. Seen once."""
        if end not in self._leavings:
            try:
                factory = pickle.dumps(self._factory)
            except Exception as e:  # pickle raises whatever it likes
                raise NotShownError(f"the provider's factory cannot be given to another process: {e}") from e
            find_out = after_closing if end == "closes" else after_a_kill
            self._leavings[end] = await find_out(factory, self.spec)
        return self._leavings[end]

    async def _keep(self, spec: SandboxSpec, *, task_status: TaskStatus[_Keeper]) -> None:
        keeper: _Keeper | None = None
        with anyio.CancelScope() as scope:
            try:
                async with opened(self.provider, spec) as sandbox:
                    keeper = _Keeper(sandbox, anyio.Event(), anyio.Event(), scope)
                    task_status.started(keeper)
                    await keeper.no_longer_wanted.wait()
            except Exception as e:
                if keeper is None:
                    raise
                keeper.trouble = _said(e)
            finally:
                if keeper is not None:
                    keeper.closed.set()


def _said(error: Exception) -> str:
    return "; ".join(f"{type(leaf).__name__}: {text_of(leaf)}" for leaf in _leaves(error))


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
