"""Messages, tools and calls between the chat API's shape and ours."""

import json
from typing import Any, get_args

import msgspec

from moonmill.agents.engine.protocol import ApiError, ChatCall, ChatMessage, ChatRequest
from moonmill.envs import ToolSpec
from moonmill.types import Message, ToolCall

_ROLES: tuple[str, ...] = get_args(Message.__annotations__["role"])
_AS_SYSTEM = "developer"
"""What newer clients of OpenAI's call the system's role."""


def told_call(call: ToolCall) -> dict[str, Any]:
    """A call as the API tells it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": told_arguments(call)}}


def told_arguments(call: ToolCall) -> str | None:
    """A call's arguments as the JSON of an object; None where that is not what they are."""
    if call.error is not None:
        return None
    try:
        # The standard library's, since what a model writes may hold numbers of any length.
        arguments = json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments
        return json.dumps(arguments, allow_nan=False, separators=(",", ":")) if isinstance(arguments, dict) else None
    except (ValueError, RecursionError):
        return None


def offered_tools(request: ChatRequest) -> tuple[ToolSpec, ...]:
    """The tools that a request offers.

    Raises:
        ApiError: it forces a call, which is not supported.
    """
    if request.tool_choice not in (None, "auto", "none"):
        raise ApiError(
            f"tool_choice={request.tool_choice!r} is not supported: 'auto' and 'none' are",
            param="tool_choice",
        )
    if request.tool_choice == "none":
        return ()
    none: dict[str, Any] = {"type": "object", "properties": {}}
    functions = [tool.function for tool in request.tools or ()]
    return tuple(ToolSpec(f.name, f.description or "", f.parameters or none) for f in functions)


def given_messages(request: ChatRequest) -> list[Message]:
    """The messages of a request.

    Raises:
        ApiError: there is none, or one that is not text.
    """
    if not request.messages:
        raise ApiError("messages is empty: a chat needs at least one", param="messages")
    return [_message(message, i) for i, message in enumerate(request.messages)]


def _message(message: ChatMessage, index: int) -> Message:
    role = "system" if message.role == _AS_SYSTEM else message.role
    if role not in _ROLES:
        raise ApiError(f"role={role!r} is not one of {', '.join(_ROLES)}", param=f"messages[{index}].role")
    return Message(
        role,  # type: ignore[arg-type]  # just checked
        _content(message, index),
        tuple(_tool_call(c) for c in message.tool_calls or ()),
        message.tool_call_id,
        message.name,
        message.reasoning_content,
    )


def _content(message: ChatMessage, index: int) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(
                f"a part of type {part.get('type')!r} is not supported: only text is",
                param=f"messages[{index}].content",
            )
    return "".join(part["text"] for part in content)


def _tool_call(call: ChatCall) -> ToolCall:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            return ToolCall(call.id, call.function.name, msgspec.json.decode(arguments, type=dict[str, Any]))
        except (msgspec.MsgspecError, RecursionError):
            return ToolCall(call.id, call.function.name, arguments)
    return ToolCall(call.id, call.function.name, arguments or {})
