"""The engine's routes. Whatever goes wrong is answered in OpenAI's error shape, never with a traceback."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from moonmill.agents.engine.bodies import read_body
from moonmill.agents.engine.chat import chat
from moonmill.agents.engine.completions import complete
from moonmill.agents.engine.protocol import ApiError, LoadRequest, UnloadRequest, decode_body
from moonmill.agents.engine.responses import ERROR_HANDLERS
from moonmill.agents.engine.service import Service


def make_app(service: Service) -> Starlette:
    """The ASGI application around a service; decoding runs during its lifespan."""
    started = int(time.time())

    async def health(request: Request) -> Response:
        return Response()

    async def models(request: Request) -> Response:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": started,
                "owned_by": "moonmill",
                "root": path,
                "parent": None if name == service.options.served_name else service.options.served_name,
                "max_model_len": service.max_length,
            }
            for name, path in service.paths.items()
        ]
        return _json({"object": "list", "data": cards})

    async def completions(request: Request) -> Response:
        return complete(service, await read_body(request, service.max_length))

    async def chat_completions(request: Request) -> Response:
        return chat(service, await read_body(request, service.max_length))

    async def load(request: Request) -> Response:
        wanted = decode_body(await read_body(request, service.max_length), LoadRequest)
        await service.load(wanted.lora_name, wanted.lora_path)
        return PlainTextResponse(f"Success: {wanted.lora_name!r} loaded from {wanted.lora_path}")

    async def unload(request: Request) -> Response:
        wanted = decode_body(await read_body(request, service.max_length), UnloadRequest)
        await service.unload(wanted.lora_name)
        return PlainTextResponse(f"Success: {wanted.lora_name!r} unloaded")

    async def sleep(request: Request) -> Response:
        if (level := request.query_params.get("level", "1")) != "1":
            raise ApiError(f"level {level:.20} of sleep is not known here, only 1", param="level")
        await service.sleep()
        return _json({"status": "sleeping", "level": 1})

    async def wake_up(request: Request) -> Response:
        await service.wake_up()
        return _json({"status": "awake", "tags": None})

    async def is_sleeping(request: Request) -> Response:
        return _json({"is_sleeping": service.asleep})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(_metrics(service))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.loop.start()
        try:
            yield
        finally:
            await service.loop.stop()

    routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("GET", "/health", health),
        ("GET", "/metrics", metrics),
        ("GET", "/v1/models", models),
        ("POST", "/v1/completions", completions),
        ("POST", "/v1/chat/completions", chat_completions),
        ("POST", "/v1/load_lora_adapter", load),
        ("POST", "/v1/unload_lora_adapter", unload),
    ]
    if service.options.can_sleep:  # not for whoever may ask a served model
        routes += [
            ("POST", "/sleep", sleep),
            ("POST", "/wake_up", wake_up),
            ("GET", "/is_sleeping", is_sleeping),
        ]
    return Starlette(
        routes=[Route(path, endpoint, methods=[method]) for method, path, endpoint in routes],
        exception_handlers=ERROR_HANDLERS,
        lifespan=lifespan,
    )


def _json(data: object) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


def _metrics(service: Service) -> str:
    """Prometheus' text format."""
    scheduler = service.loop.scheduler
    counters = scheduler.counters
    rows = [
        ("requests_running", "gauge", len(scheduler.running)),
        ("requests_waiting", "gauge", len(scheduler.waiting)),
        ("versions_loaded", "gauge", len(service.models)),
        ("requests_total", "counter", counters.requests),
        ("steps_total", "counter", counters.steps),
        ("prompt_tokens_total", "counter", counters.prompt_tokens),
        ("cached_prompt_tokens_total", "counter", counters.cached_tokens),
        ("generated_tokens_total", "counter", counters.generated_tokens),
    ]
    return "".join(f"# TYPE moonmill_{name} {kind}\nmoonmill_{name} {value}\n" for name, kind, value in rows)
