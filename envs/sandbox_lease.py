"""One sandbox from its opening to its end, as seen from any thread. It lives on a host's event loop."""

from typing import Any

import anyio
from anyio.abc import TaskGroup

from moonmill.envs.elsewhere import CallOff, Deliver
from moonmill.envs.loop import Answer
from moonmill.envs.sandbox_host import SandboxHost
from moonmill.errors import EnvCodeError, MoonmillError
from moonmill.sandboxes import Sandbox, SandboxSpec, SandboxUnavailableError

_CLOSED = "a sandbox was used that is closed: it ends with its episode, or its `with`"


class Lease:
    """A sandbox from its opening to its end. `open`, `call` and `close` begin that, from any thread.

    Args:
        host: where it is.
        spec: what is needed of it.
        further: its episode has one already.
    """

    def __init__(self, host: SandboxHost, spec: SandboxSpec, *, further: bool) -> None:
        self.is_open = False
        self._is_closed = False
        self._host = host
        self._spec = spec
        self._further = further
        self._sandbox: Sandbox
        self._calls: TaskGroup
        self._scope: anyio.CancelScope | None = None
        self._error: MoonmillError | None = None
        self._close_asked: anyio.Event
        self._opened: anyio.Event
        self._ended: anyio.Event

    @property
    def lost(self) -> str:
        """Why the sandbox is of no more use; empty while it is, as far as is known."""
        if self.is_open:
            return self._sandbox.lost
        return "it is closed" if self._scope or self._is_closed else ""

    def open(self, deliver: Deliver) -> CallOff:
        """Get it; twice is once. The answer is None, or a `SandboxUnavailableError` or `SandboxSpecError`: why not."""
        return self._host.begin(self._open, deliver)

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], deliver: Deliver) -> CallOff:
        """Call a method of the sandbox. The answer is what that returns or raises."""

        async def work(host: SandboxHost) -> Any:
            return await getattr(self._sandbox, method)(*args, **kwargs)

        return self._host.begin(work, deliver, group=self._open_for_calls)

    def close(self, deliver: Deliver) -> CallOff:
        """Take it away, whatever goes on in it. The answer is None, at once where it is gone. It is not called off."""
        self._host.begin(self._close, deliver, otherwise=Answer())
        return _nothing

    # On the host's loop from here on.

    def ask_to_close(self) -> None:
        """Begin to close it."""
        assert self._scope is not None
        if not self._opened.is_set():
            self._scope.cancel()
        self._close_asked.set()

    async def _open(self, host: SandboxHost) -> None:
        if self._is_closed:
            raise EnvCodeError(_CLOSED)
        if self._scope is None:
            self._begin(host)
        await self._wait_for_opening()

    def _begin(self, host: SandboxHost) -> None:
        self._close_asked, self._opened, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._scope = anyio.CancelScope()
        host.leases.add(self)
        host.group.start_soon(self._keep, host)

    async def _wait_for_opening(self) -> None:
        try:
            await self._opened.wait()
        except BaseException:
            self.ask_to_close()
            raise
        if not self.is_open:
            raise self._error or SandboxUnavailableError("the sandbox was closed before it was there")

    async def _close(self, host: SandboxHost) -> None:
        self._is_closed = True
        if self._scope is None:
            return
        self.ask_to_close()
        await self._ended.wait()

    async def _keep(self, host: SandboxHost) -> None:
        """One task from the opening to the end: what a provider enters, it leaves in the same task."""
        assert self._scope is not None
        try:
            with self._scope:
                async with host.place(self._further), host.pool.open(self._spec) as self._sandbox:
                    await self._serve_calls()
        except Exception as e:
            self._error = host.ours(e)
        finally:
            host.leases.discard(self)
            self._opened.set()
            self._ended.set()

    async def _serve_calls(self) -> None:
        async with anyio.create_task_group() as self._calls:
            self.is_open = True
            self._opened.set()
            try:
                await self._close_asked.wait()
            finally:
                self.is_open = False
                self._calls.cancel_scope.cancel()

    def _open_for_calls(self) -> TaskGroup:
        if not self.is_open:
            raise self._error or EnvCodeError(_CLOSED)
        return self._calls


def _nothing() -> None: ...
