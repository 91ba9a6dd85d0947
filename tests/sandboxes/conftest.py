"""Both event loops, and what a provider must not leave behind."""

from collections.abc import AsyncIterator

import pytest

from moonmill.sandboxes.local import LocalProvider


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def local() -> AsyncIterator[LocalProvider]:
    async with LocalProvider() as provider:
        yield provider
