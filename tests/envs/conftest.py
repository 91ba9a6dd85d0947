"""Real sandboxes for tests of what runs in them, without an environment around."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from moonmill.sandboxes import Sandbox, SandboxLimits, SandboxSpec
from moonmill.sandboxes.local import LocalProvider

SPEC = SandboxSpec(limits=SandboxLimits(memory_mib=256, pids=64, disk_mib=64))
OpenSandbox = Callable[[], AbstractContextManager[Any]]


class Blocking:
    """The methods of a sandbox, to be called from a test."""

    def __init__(self, portal: BlockingPortal, sandbox: Sandbox) -> None:
        self._portal = portal
        self._sandbox = sandbox

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._portal.call(partial(getattr(self._sandbox, method), *args, **kwargs))


@pytest.fixture(scope="module")
def open_sandbox() -> Iterator[OpenSandbox]:
    """Gives a fresh sandbox of the local provider."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(LocalProvider()) as provider:

        @contextmanager
        def opened() -> Iterator[Blocking]:
            with portal.wrap_async_context_manager(provider.open(SPEC)) as sandbox:
                yield Blocking(portal, sandbox)

        yield opened


@pytest.fixture
def box(open_sandbox: OpenSandbox) -> Iterator[Any]:
    """A fresh sandbox."""
    with open_sandbox() as sandbox:
        yield sandbox
