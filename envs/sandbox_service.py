"""Sandboxes for all episodes of the process: which provider gives them, and what of it has been started.

It starts with the first sandbox that is wanted: environments without one cost nothing.
"""

import atexit
import os
import threading
from functools import partial
from types import TracebackType
from typing import Self
from weakref import WeakSet

from msgspec import structs

from moonmill.config import SandboxConfig
from moonmill.config_check import problems
from moonmill.envs.elsewhere import wait_on_thread
from moonmill.envs.sandbox_host import SandboxFigures, SandboxHost
from moonmill.envs.sandbox_lease import Lease
from moonmill.errors import ConfigError
from moonmill.sandboxes import SandboxSpec
from moonmill.sandboxes.providers import check_name

_END_SECONDS = 20.0
"""For the sandboxes that are still open when the service ends."""
_EXIT_SECONDS = 5.0
"""The same at the end of the process, which ends them in any case."""


class SandboxService:
    """Gives sandboxes. As a context it is the one that episodes use, and takes all of its sandboxes away in the end.

    Example:
        >>> with SandboxService(SandboxConfig(provider="docker")):
        ...     env = make("python-code-v0")
        ...     env.reset()

    Args:
        config: which provider, and how many.

    Raises:
        ConfigError: one of its values cannot be, or there is no provider of that name.
    """

    _current: "SandboxService | None" = None
    _all: "WeakSet[SandboxService]" = WeakSet()

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        if wrong := problems(SandboxConfig, structs.asdict(self.config)):
            raise ConfigError("; ".join(f"sandbox.{'.'.join(problem.path)}: {problem.text}" for problem in wrong))
        check_name(self.config.provider)
        self._lock = threading.Lock()
        self._host: SandboxHost | None = None
        self._outer: SandboxService | None = None
        self._taken = SandboxFigures()
        self._all.add(self)

    @classmethod
    def current(cls) -> "SandboxService":
        """The one that episodes use. Outside of any, one with the config's defaults."""
        if cls._current is None:
            cls._current = cls()
        return cls._current

    def __enter__(self) -> Self:
        self._outer, SandboxService._current = SandboxService._current, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        SandboxService._current = self._outer
        self.close()

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Take all its sandboxes away. One that is wanted afterwards starts it again."""
        with self._lock:
            host, self._host = self._host, None
        if host is not None:
            host.end(seconds)

    def lease(self, spec: SandboxSpec, *, further: bool) -> Lease:
        """A sandbox that is to be opened.

        Args:
            spec: what is needed of it.
            further: its episode has one already.
        """
        return Lease(self._running(), spec, further=further)

    def check(self, spec: SandboxSpec) -> tuple[str, dict[str, str]]:
        """The provider's name, and what it enforces on this host, in words.

        Raises:
            SandboxSpecError: it cannot honour the spec.
            SandboxUnavailableError: it does not work on this host.
        """

        async def look(host: SandboxHost) -> tuple[str, dict[str, str]]:
            async with host.pool.open(spec):  # for what only that shows, such as an image that is missing
                pass
            return host.pool.name, dict(host.pool.enforces())

        found: tuple[str, dict[str, str]] = wait_on_thread(partial(self._running().begin, look))
        return found

    def figures(self) -> SandboxFigures:
        """As they are now."""
        host = self._host
        return host.figures() if host is not None else SandboxFigures()

    def take_figures(self) -> SandboxFigures:
        """The same; of those that grow, what has come since this was last asked."""
        before, self._taken = self._taken, self.figures()
        return self._taken.since(before)

    def _running(self) -> SandboxHost:
        with self._lock:
            if self._host is None or self._host.has_ended:
                self._host = SandboxHost(self.config)
            return self._host

    @classmethod
    def forget(cls) -> None:
        """A forked process has neither the thread nor the sandboxes."""
        for service in cls._all:
            service._lock, service._host = threading.Lock(), None

    @classmethod
    def exit(cls) -> None:
        """The process ends."""
        for service in tuple(cls._all):
            service.close(_EXIT_SECONDS)


os.register_at_fork(after_in_child=SandboxService.forget)
atexit.register(SandboxService.exit)
