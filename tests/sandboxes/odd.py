"""Providers that are not as they should be, each in one way: `tests.sandboxes.odd:…` for `moonmill sandbox check`."""

import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio.lowlevel

from moonmill.sandboxes import Sandbox, SandboxSpec
from moonmill.sandboxes.unsafe import UnsafeSubprocessProvider


class EnterRaises(UnsafeSubprocessProvider):
    name = "odd"

    async def __aenter__(self) -> Self:
        raise KeyError("no key")


class EnterExits(UnsafeSubprocessProvider):
    name = "odd"

    async def __aenter__(self) -> Self:
        sys.exit(0)


class LeavingRaises(UnsafeSubprocessProvider):
    name = "odd"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise KeyError("no key")


class EnforcesRaises(UnsafeSubprocessProvider):
    name = "odd"

    def enforces(self) -> Mapping[str, str]:
        raise ZeroDivisionError


class EnforcesASet(UnsafeSubprocessProvider):
    name = "odd"

    def enforces(self) -> Any:
        return {"network"}


class Misspelt(UnsafeSubprocessProvider):
    name = "odd"

    def enforces(self) -> Mapping[str, str]:
        return {"netwrk": "a namespace"}


class RequireRaises(UnsafeSubprocessProvider):
    name = "odd"

    def require(self, spec: SandboxSpec) -> None:
        raise AttributeError("no such limit")


class RequireIsAsync(UnsafeSubprocessProvider):
    name = "odd"

    async def require(self, spec: SandboxSpec) -> None: ...  # type: ignore[override]


class OpenRaises(UnsafeSubprocessProvider):
    name = "odd"

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        raise ZeroDivisionError("odd")
        yield


class OpenExits(UnsafeSubprocessProvider):
    name = "odd"

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        sys.exit(0)
        yield


class OpenIsAFunction(UnsafeSubprocessProvider):
    name = "odd"

    async def open(self, spec: SandboxSpec) -> Any: ...  # type: ignore[override]


class OpenIsNone(UnsafeSubprocessProvider):
    name = "odd"
    open = None  # type: ignore[assignment]


class HasNoName(UnsafeSubprocessProvider):
    name = None  # type: ignore[assignment]


class Busy(UnsafeSubprocessProvider):
    """Never ready, and always at work; tells how it was ended."""

    name = "odd"

    async def __aenter__(self) -> Self:
        print("at work", file=sys.stderr, flush=True)
        try:
            while True:
                end = time.monotonic() + 0.05
                while time.monotonic() < end:
                    pass
                await anyio.lowlevel.checkpoint()
        except BaseException as e:
            print("ended by", type(e).__name__, file=sys.stderr, flush=True)
            raise


def exits() -> Any:
    sys.exit(0)
