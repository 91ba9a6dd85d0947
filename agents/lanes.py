"""One HTTP connection for each request in flight, kept for the next.

A pool that many requests share looks at all of its connections for each of them: with 64 streams httpx spends more time
choosing a connection than the engine takes to answer. Here every request has a client with a single connection to
itself.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

_CONNECT_SECONDS = 5.0


class Lanes:
    """Clients with one connection each; as many as there ever were requests at once.

    Args:
        timeout: seconds without a byte.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = httpx.Timeout(timeout, connect=_CONNECT_SECONDS, pool=None)
        # Made once: every client would read the certificates again.
        self._ssl = ssl.create_default_context()
        self._free: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else uses meanwhile."""
        client = self._free.pop() if self._free else self._open()
        try:
            yield client
        finally:
            self._free.append(client)

    async def aclose(self) -> None:
        """Close all connections. No request is in flight any more."""
        while self._free:
            await self._free.pop().aclose()

    def _open(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        # Proxies of the environment are for the outside world; looking for them costs at every start.
        return httpx.AsyncClient(timeout=self._timeout, limits=limits, verify=self._ssl, trust_env=False)
