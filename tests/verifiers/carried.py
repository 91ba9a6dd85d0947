"""Run in verifiers' Python environment, with the folder of `moonmill_inside`: prints how requests are carried there."""

import asyncio
import importlib
import importlib.util
import json
import sys
from typing import Any

import httpx
import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.interception import server


def inside(name: str) -> Any:
    """A module of `moonmill_inside`."""
    folder = sys.argv[1]
    if "moonmill_inside" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "moonmill_inside", f"{folder}/__init__.py", submodule_search_locations=[folder]
        )
        assert spec is not None
        sys.modules["moonmill_inside"] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"moonmill_inside.{name}")


async def echo(request: web.Request) -> web.Response:
    assert request.transport is not None
    told = {"said": await request.text(), "header": request.headers.get("X-Mine"), "port": _port_of(request)}
    return web.json_response(told, status=int(request.query.get("status", "200")))


async def cut(request: web.Request) -> web.StreamResponse:
    """Half of what was promised."""
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"half")
    assert request.transport is not None
    request.transport.abort()
    return response


async def main() -> None:
    inside("v1")
    carrier = type(inside("carrier").client()._transport)
    kinds = [
        type(server.resolve_client(vf.EvalClientConfig(base_url="http://x", api_key_var=key)).client._transport)
        for key in ("MOONMILL_NO_KEY", "ANOTHER_KEY")
    ]
    told: dict[str, Any] = {"carried": [kind is carrier for kind in kinds]}
    app = web.Application()
    app.router.add_post("/echo", echo)
    app.router.add_post("/cut", cut)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    client = inside("carrier").client()
    replies = [
        await client.post(f"http://127.0.0.1:{port}/echo?status={status}", content="ü", headers={"X-Mine": "here"})
        for status in (200, 302, 503)
    ]
    told["echoed"] = [[r.status_code, r.json()["said"], r.json()["header"]] for r in replies]
    told["connections"] = len({r.json()["port"] for r in replies})
    told["at once"] = sorted(
        r.status_code for r in await asyncio.gather(*(client.post(f"http://127.0.0.1:{port}/echo") for _ in range(300)))
    )
    told["cut"] = await _fault(client, f"http://127.0.0.1:{port}/cut")
    await runner.cleanup()
    told["gone"] = await _fault(client, f"http://127.0.0.1:{port}/echo")
    await client.aclose()
    print(json.dumps(told))


def _port_of(request: web.Request) -> int:
    """Of the client's connection."""
    port: int = request.transport.get_extra_info("peername")[1]  # type: ignore[union-attr]
    return port


async def _fault(client: httpx.AsyncClient, url: str) -> str:
    try:
        await client.post(url)
    except httpx.HTTPError as e:
        return type(e).__name__
    return "none"


asyncio.run(main())
