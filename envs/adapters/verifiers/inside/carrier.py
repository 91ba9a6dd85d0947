"""An httpx client that asks this machine for little: aiohttp carries its requests.

httpx's own pool goes through all its connections at each request, of which there are as many as episodes at once, and
that was a third of what an episode takes here. verifiers brings aiohttp along.
"""

from collections.abc import AsyncIterator

import aiohttp
import httpx

_CONNECT_SECONDS = 30.0
_IDLE_SECONDS = 15.0
"""Shorter than servers keep idle connections, so that nothing is sent into one that is just being closed."""


def client() -> httpx.AsyncClient:
    """A client for servers of this machine, which may take as long as they like to answer."""
    return httpx.AsyncClient(transport=_Carrier(), trust_env=False, timeout=None)


class _Carrier(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._session is None:  # aiohttp wants to be told of the event loop that it runs on.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        try:
            reply = await self._session.request(
                request.method,
                str(request.url),
                data=await request.aread(),
                headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw],
                allow_redirects=False,
            )
        except TimeoutError as e:
            raise httpx.ConnectTimeout(f"no connection within {_CONNECT_SECONDS:g} s", request=request) from e
        except (aiohttp.ClientError, OSError) as e:
            raise httpx.ConnectError(str(e) or type(e).__name__, request=request) from e
        return httpx.Response(reply.status, headers=reply.raw_headers, stream=_Body(reply), request=request)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Body(httpx.AsyncByteStream):
    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._reply.content.iter_any():
                yield chunk
        except aiohttp.ClientError as e:
            raise httpx.ReadError(str(e) or type(e).__name__) from e

    async def aclose(self) -> None:
        self._reply.release()
