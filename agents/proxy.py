"""The recording proxy: one HTTP server for the programs that play episodes of this process.

It speaks the chat API as the engine's own server does, with a key for each episode, and asks the episode's desk for the
answers. It runs on an event loop of its own thread, so that no program's requests hold up the trainer, is started with
the first episode, and ends with the process. It listens on this machine alone.
"""

import asyncio
import os
import secrets
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moonmill.agents import proxy_answers
from moonmill.agents.engine.bodies import read_body
from moonmill.agents.engine.protocol import ApiError
from moonmill.agents.engine.responses import ERROR_HANDLERS
from moonmill.agents.serving import KEEP_ALIVE_SECONDS, listen
from moonmill.envs import Endpoint
from moonmill.envs.foreign import UNRECORDED

if TYPE_CHECKING:
    from moonmill.agents.desk import Desk

SESSION_HEADER = "X-Session-ID"
"""May hold the key, and, behind a dot, a name for one of the episode's conversations."""
_HOST = "127.0.0.1"
Answer = Callable[["Desk", bytes, bool], Response]


class Proxy:
    """The server. `open` gives an episode its endpoint there."""

    _shared: ClassVar["Proxy | None"] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        listener = listen(_HOST, 0)
        self._desks: dict[str, Desk] = {}
        self._url = f"http://{_HOST}:{listener.getsockname()[1]}/v1"
        self._pid = os.getpid()
        config = uvicorn.Config(
            self._app(),
            log_level="error",
            access_log=False,
            ws="none",
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        server = uvicorn.Server(config)

        def run() -> None:
            with suppress(asyncio.CancelledError):
                asyncio.run(server.serve(sockets=[listener]))

        threading.Thread(target=run, name="moonmill-proxy", daemon=True).start()

    @classmethod
    def open(cls, desk: "Desk") -> tuple[Endpoint, "Proxy"]:
        """An endpoint whose requests `desk` answers, until its key is closed."""
        with cls._lock:
            # A forked process has its parent's object and not its thread.
            if cls._shared is None or cls._shared._pid != os.getpid():
                cls._shared = cls()
        proxy = cls._shared
        key = f"episode-{secrets.token_urlsafe(24)}"
        proxy._desks[key] = desk
        return Endpoint(proxy._url, key), proxy

    def close(self, key: str) -> None:
        """The episode of this key is over."""
        self._desks.pop(key, None)

    def _desk(self, request: Request) -> tuple["Desk", bool]:
        """Who answers a request, and whether that is recorded."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        # A client that many episodes share has one token for all; verifiers' says in another header whose a request is.
        session = request.headers.get(SESSION_HEADER, "").partition(".")[0]
        for key in (token.strip() if kind.lower() == "bearer" else "", session):
            if (desk := self._desks.get(key.removesuffix(UNRECORDED))) is not None:
                return desk, not key.endswith(UNRECORDED)
        raise ApiError("the key is no episode's, or its episode is over", 401, code="invalid_api_key")

    def _app(self) -> Starlette:
        def posted(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
            async def handle(request: Request) -> Response:
                desk, recorded = self._desk(request)
                return answer(desk, await read_body(request, desk.max_length), recorded)

            return handle

        async def models(request: Request) -> Response:
            desk, _ = self._desk(request)
            card = {"id": Endpoint.__struct_defaults__[0], "object": "model", "created": 0, "owned_by": "moonmill"}
            body = {"object": "list", "data": [{**card, "max_model_len": desk.max_length}]}
            return Response(msgspec.json.encode(body), media_type="application/json")

        return Starlette(
            routes=[
                Route("/v1/models", models, methods=["GET"]),
                Route("/v1/chat/completions", posted(proxy_answers.chat), methods=["POST"]),
                Route("/v1/completions", posted(proxy_answers.complete), methods=["POST"]),
                Route("/inference/v1/generate", posted(proxy_answers.generate), methods=["POST"]),
            ],
            exception_handlers=ERROR_HANDLERS,
        )
