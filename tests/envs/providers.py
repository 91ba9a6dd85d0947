"""Providers that fail: `tests.envs.providers:…` in a config. What works is `unsafe-subprocess`'s."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import anyio

from moonmill.sandboxes import Sandbox, SandboxSpec, SandboxUnavailableError
from moonmill.sandboxes.unsafe import UnsafeSubprocessProvider


class Refusing(UnsafeSubprocessProvider):
    """Works once the host allows it."""

    allowed = False

    async def __aenter__(self) -> Self:
        if not self.allowed:
            raise SandboxUnavailableError("user namespaces are not allowed here: allow them")
        return self


class Starting(UnsafeSubprocessProvider):
    """Never ready."""

    async def __aenter__(self) -> Self:
        await anyio.sleep_forever()
        return self


class Odd(UnsafeSubprocessProvider):
    """Raises what a provider should not."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        raise ZeroDivisionError("odd")
        yield


class Hanging(UnsafeSubprocessProvider):
    """Never has a sandbox."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        await anyio.sleep_forever()
        yield


class Unclosable(UnsafeSubprocessProvider):
    """Fails at taking one away."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with super().open(spec) as sandbox:
            yield sandbox
        raise SandboxUnavailableError("it could not be taken away")


def nothing() -> object:
    """No provider."""
    return object()
