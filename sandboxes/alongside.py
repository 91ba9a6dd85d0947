"""Something that goes on while a sandbox is used."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio


@asynccontextmanager
async def alongside(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Do `work`, which must not raise, until the body has ended. The body's error comes out as it is."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            try:
                yield
            finally:
                group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
