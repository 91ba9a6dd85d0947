"""A harness that asks the model in this process, instead of in a program that is started for each episode.

It does what verifiers' own `null` harness does: it offers the task's tools, and goes on until an answer makes no call.
"""

import json
from typing import Any

import httpx
import verifiers.v1 as vf

from .carrier import client
from .tools import Tools, open_tools

__all__ = ["Chat"]
_OVERFLOW = "context_length_exceeded"


class ChatConfig(vf.HarnessConfig):
    """Has nothing of its own to set."""


class Chat(vf.Harness[ChatConfig]):
    """The harness."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_TOOL_INTERCEPTION = False
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def session(self, *args: Any, **kwargs: Any) -> vf.HarnessSession:
        return _Conversation(self, *args, **kwargs)

    async def launch(self, *args: Any, **kwargs: Any) -> vf.ProgramResult:
        conversation = _Conversation(self, *args, **kwargs)
        try:
            return await conversation._run(None)
        finally:
            await conversation.close()


class _Conversation(vf.HarnessSession):
    """One episode's; tools and a connection stay open from one turn of its user to the next."""

    def __init__(self, harness: Chat, *args: Any, **kwargs: Any) -> None:
        super().__init__(harness, *args, **kwargs)
        self._http = client()
        self._tools: Tools | None = None
        self._messages: list[dict[str, Any]] = []

    async def _run(self, messages: Any) -> vf.ProgramResult:
        if self._tools is None:
            self._tools = await open_tools(self.mcp_urls, self.trace, self.data)
        if not self._messages and self.data.system_prompt is not None:
            self._messages.append({"role": "system", "content": self.data.system_prompt})
        if messages is None:
            messages = self.data.prompt
        new = [vf.UserMessage(content=messages)] if isinstance(messages, str) else messages or []
        self._messages += [_on_wire(message) for message in new]
        return await self._converse(self._tools)

    async def _converse(self, tools: Tools) -> vf.ProgramResult:
        body: dict[str, Any] = {"model": self.ctx.model, "messages": self._messages}
        if tools.schemas:
            body["tools"] = tools.schemas
        while True:
            reply = await self._http.post(
                f"{self.endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {self.secret}"}
            )
            if reply.status_code != httpx.codes.OK:
                if _OVERFLOW in reply.text:  # ends an episode as any limit does: what was said is scored
                    self.trace.stop("max_total_tokens")
                return vf.ProgramResult(1, "", reply.text)
            message = reply.json()["choices"][0]["message"]
            self._messages.append(message)
            calls = message.get("tool_calls") or ()
            if not calls:
                return vf.ProgramResult(0, "", "")
            for call in calls:
                content = await tools.answer(call["function"]["name"], call["function"]["arguments"])
                self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    async def close(self) -> None:
        try:
            await super().close()
            await self._http.aclose()
        finally:
            if self._tools is not None:
                await self._tools.close()


def _on_wire(message: Any) -> dict[str, Any]:
    """A message of theirs as chat APIs have it."""
    if isinstance(message, dict):
        return message
    said: dict[str, Any] = message.model_dump(
        mode="json", exclude_none=True, include={"role", "content", "tool_call_id"}
    )
    calls = getattr(message, "tool_calls", None)
    if calls:
        functions = [{"name": call.name, "arguments": call.arguments or json.dumps({})} for call in calls]
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": function}
            for call, function in zip(calls, functions, strict=True)
        ]
    return said
