"""The tools of an episode: those that can be run in this process, and those that servers have.

verifiers starts a process for each toolset of each episode. Here a toolset gets a thread and an event loop of its own
instead: what blocks there holds up that episode alone, and what belongs to a thread or a loop stays on it.
"""

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import verifiers.v1 as vf

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # before 2.0
    from mcp.server.fastmcp import FastMCP as MCPServer

T = TypeVar("T")
_SCHEME = "moonmill:"
_SHOWN = 500
"""Characters that are kept of what was said of a fault."""
_offered: "WeakValueDictionary[str, vf.Toolset]" = WeakValueDictionary()
"""Toolsets on their way from the task to the session, by what stands in the place of a server's address."""


faults: ContextVar[dict[str, list[dict[str, str]]]] = ContextVar("faults")
"""What went wrong in the tools of the episode that is played here, by the id of the trace."""


def in_process(task: Any) -> Any:
    """Have the toolsets of `task`, an episode's own copy, run here: verifiers is told that servers for them are up."""
    declared = type(task).toolsets

    def toolsets(config: Any) -> list[Any]:
        found = declared(config)
        for toolset in found:
            if _can_be_here(toolset):
                address = _SCHEME + secrets.token_hex(8)
                toolset.config = toolset.config.model_copy(update={"url": address})
                _offered[address] = toolset
        return found

    task.toolsets = toolsets
    return task


def _can_be_here(toolset: Any) -> bool:
    return not toolset.config.url and isinstance(toolset.config.runtime, vf.SubprocessConfig)


class Tools:
    """All tools of an episode, under the names that the model is told.

    Args:
        trace: the episode's.
    """

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self.schemas: list[dict[str, Any]] = []
        self.calls: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {}
        self.rooms: list[_Room] = []

    def add(self, server: str, tool: Any, call: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
        """Offer one of a server's tools."""
        name = f"{server}_{tool.name}" if server else tool.name
        if name in self.calls:
            raise ValueError(f"two tools are called {name!r}")
        schema = next(s for n in ("input_schema", "inputSchema") if (s := getattr(tool, n, None)))
        function = {"name": name, "description": tool.description or "", "parameters": schema}
        self.schemas.append({"type": "function", "function": function})
        self.calls[name] = call

    async def answer(self, name: str, arguments: str) -> str | list[dict[str, Any]]:
        """What the model is told of a call."""
        try:
            given = json.loads(arguments or "{}")
        except json.JSONDecodeError as e:
            said = f"error: invalid JSON in tool arguments ({e}); resend the call with valid JSON"
            return self._failed(name, "invalid_arguments", said)
        if not isinstance(given, dict):
            said = f"error: tool arguments must be a JSON object, got {type(given).__name__}; resend as an object"
            return self._failed(name, "invalid_arguments", said)
        if name not in self.calls:
            return self._failed(name, "unknown_tool", f"error: unknown tool {name!r}")
        try:
            result = await self.calls[name](given)
        except Exception as e:  # theirs is around what the tool has raised
            return self._failed(name, type(e.__cause__ or e).__name__, str(e))
        content = _content(result)
        if any(getattr(result, flag, False) for flag in ("is_error", "isError")):
            self._failed(name, "error", str(content))
        return content

    def _failed(self, name: str, kind: str, said: str) -> str:
        """Count a fault; returns what the model is told."""
        faults.get({}).setdefault(self._trace.id, []).append({"tool": name, "kind": kind, "example": said[:_SHOWN]})
        return said

    async def close(self) -> None:
        """End the toolsets that run here."""
        rooms, self.rooms = self.rooms, []
        for room in rooms:
            room.close()


async def open_tools(addresses: dict[str, str], trace: Any, data: Any) -> Tools:
    """The tools of servers by their names and addresses, of which some are no servers but run here."""
    tools = Tools(trace)
    try:
        for server, address in addresses.items():
            if address.startswith(_SCHEME):
                await _add_here(tools, server, _offered.pop(address), trace, data)
            else:
                await _add_served(tools, server, address)
    except BaseException:
        await tools.close()
        raise
    return tools


async def _add_here(tools: Tools, server: str, toolset: Any, trace: Any, data: Any) -> None:
    # The state of an episode is the trace's; a server would fetch and send it around each call.
    toolset.__class__ = type(type(toolset).__name__, (type(toolset),), {"state": property(lambda _: trace.state)})
    room = _Room(toolset)
    tools.rooms.append(room)
    await room.have(toolset.setup)
    await room.have(lambda: toolset.setup_task(data))
    here = MCPServer(server, log_level="CRITICAL")
    toolset.register(here)
    for tool in await here.list_tools():

        def call(arguments: dict[str, Any], name: str = tool.name) -> Awaitable[Any]:
            return room.have(lambda: here.call_tool(name, arguments))

        tools.add(server, tool, call)


async def _add_served(tools: Tools, server: str, address: str) -> None:
    async with _client(address) as client:
        listed = (await client.list_tools()).tools
    for tool in listed:

        async def call(arguments: dict[str, Any], name: str = tool.name) -> Any:
            async with _client(address) as client:
                return await client.call_tool(name, arguments)

        tools.add(server, tool, call)


@asynccontextmanager
async def _client(address: str) -> AsyncIterator[Any]:
    """A connection to a server; theirs keep nothing from one to the next."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with streamable_http_client(address) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        yield session


class _Room:
    """A thread with an event loop, for one toolset."""

    def __init__(self, toolset: Any) -> None:
        self._toolset = toolset
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._live, name="toolset", daemon=True).start()

    async def have(self, wanted: Callable[[], Awaitable[T]]) -> T:
        """Have something awaited there."""

        async def there() -> T:
            return await wanted()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self._loop))

    def close(self) -> None:
        """Close what the toolset has opened, when it comes to that: a tool may still be at work."""
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end()))

    async def _end(self) -> None:
        try:
            await self._toolset._exit_stack.aclose()
        finally:
            self._loop.stop()

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()


def _content(result: Any) -> str | list[dict[str, Any]]:
    """A tool's result as chat APIs have it: a text, or parts where there are images."""
    blocks = getattr(result, "content", None) or (result[0] if isinstance(result, tuple) else result)
    parts = [_part(block) for block in blocks]
    return parts if any(p["type"] != "text" for p in parts) else "\n".join(p["text"] for p in parts)


def _part(block: Any) -> dict[str, Any]:
    if block.type == "image":
        kind = getattr(block, "mime_type", None) or block.mimeType
        return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{block.data}"}}
    return {"type": "text", "text": block.text if block.type == "text" else str(block)}
