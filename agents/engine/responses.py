"""Answers that end when the client goes away.

A generation is worth computing only while somebody waits for it: a dropped connection cancels the work behind an answer
at once, streamed or not.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import anyio
from anyio import CancelScope
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moonmill.agents.engine.protocol import ApiError

_DONE = b"data: [DONE]\n\n"


class Event(NamedTuple):
    """One chunk of a stream, as JSON. Saying which is the last saves a packet at the end of every stream."""

    data: bytes
    last: bool


class WhileConnected(Response):
    """Runs `work` to send the answer, and cancels it when the client disconnects."""

    def __init__(self, work: Callable[[Send], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
            await self._work(send)
            tasks.cancel_scope.cancel()


def whole(make: Callable[[], Awaitable[bytes]]) -> WhileConnected:
    """An answer in one piece of JSON."""

    async def work(send: Send) -> None:
        try:
            await _send_json(send, 200, await make())
        except ApiError as e:
            await _send_json(send, e.status, e.body())

    return WhileConnected(work)


def streamed(events: Callable[[], AsyncIterator[Event]]) -> WhileConnected:
    """An answer in server-sent events, one each; the last is marked."""

    async def work(send: Send) -> None:
        started = False
        try:
            async for event in events():
                if not started:
                    await _start(send, 200, b"text/event-stream; charset=utf-8")
                    started = True
                await _body(
                    send, b"data: " + event.data + b"\n\n" + (_DONE if event.last else b""), more=not event.last
                )
        except ApiError as e:
            if started:
                await _body(send, b"data: " + e.body() + b"\n\n" + _DONE, more=False)
            else:
                await _send_json(send, e.status, e.body())

    return WhileConnected(work)


async def _send_json(send: Send, status: int, body: bytes) -> None:
    await _start(send, status, b"application/json", len(body))
    await _body(send, body, more=False)


async def _start(send: Send, status: int, kind: bytes, length: int | None = None) -> None:
    headers = [(b"content-type", kind)]
    headers.append((b"cache-control", b"no-cache") if length is None else (b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _body(send: Send, body: bytes, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _cancel_on_disconnect(receive: Receive, scope: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return Response(error.body(), status_code=error.status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return await _api_error(request, ApiError(message, error.status_code))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _internal_error(request: Request, error: Exception) -> Response:
    return await _api_error(request, ApiError(f"internal error: {type(error).__name__}", 500))


ERROR_HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    ApiError: _api_error,
    HTTPException: _http_error,
    ClientDisconnect: _gone,
    Exception: _internal_error,
}
"""What an application answers where a route raises: OpenAI's error shape."""
