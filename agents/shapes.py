"""Messages, tools and calls in the shape of chat APIs, which is the `renderers` package's, and back."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import renderers

from moonmill.envs import ToolSpec
from moonmill.types import Message, ToolCall

_CALL_ERRORS = {
    renderers.ToolCallParseStatus.INVALID_JSON: "the arguments are not valid JSON",
    renderers.ToolCallParseStatus.UNCLOSED_BLOCK: "the call is not closed",
    renderers.ToolCallParseStatus.MISSING_NAME: "the call names no tool",
    renderers.ToolCallParseStatus.MALFORMED_STRUCTURE: "the call is not in the format for calls",
}
"""What is told to the model. An unknown tool is no error here: the environment answers it with the known ones."""
_PYTHON = {"True": True, "False": False, "None": None}


def tool_dicts(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """Tools as the package takes them; None where there are none, which templates tell from an empty list."""
    return [tool.to_openai() for tool in tools] or None


def message_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation. A result that does not name its tool gets the name from the call it answers."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_message_dict(m, m.name or names.get(m.tool_call_id or "")) for m in messages]


def as_users(messages: Sequence[Message]) -> list[Message]:
    """The messages, tools' results as what a user says: for a turn that a format can put no result behind."""
    return [Message("user", f"{m.name or 'tool'}: {m.content}") if m.role == "tool" else m for m in messages]


def to_calls(attempts: Sequence[renderers.ParsedToolCall], turn: str, tools: Sequence[ToolSpec]) -> Iterator[ToolCall]:
    """The calls the parser read, or the errors that the environment is to answer them with."""
    schemas = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
    for index, attempt in enumerate(attempts):
        yield _to_call(attempt, f"{turn}-{index}", schemas)


def _message_dict(message: Message, name: str | None) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if name:
        out["name"] = name
    if message.reasoning is not None:
        out["reasoning_content"] = message.reasoning
    return out


def _to_call(attempt: renderers.ParsedToolCall, default_id: str, schemas: dict[str, Any]) -> ToolCall:
    call_id = attempt.id or default_id
    name = attempt.name if isinstance(attempt.name, str) else ""
    arguments = attempt.arguments
    problem = _CALL_ERRORS.get(attempt.status)
    if attempt.status is renderers.ToolCallParseStatus.INVALID_JSON and isinstance(arguments, dict):
        # Formats with a tag for every argument: one of them is text where JSON was expected. The environment, which
        # has the schema, says which.
        return ToolCall(call_id, name, _without_python(arguments, schemas.get(name, {})))
    if problem is not None:
        return ToolCall(call_id, name, attempt.raw, problem)
    if arguments is None:
        return ToolCall(call_id, name)
    # Parsers take any JSON for arguments; what is no object goes to the environment as the text it was.
    return ToolCall(call_id, name, arguments if isinstance(arguments, dict | str) else json.dumps(arguments))


def _without_python(arguments: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    """`True`, `False` and `None`, as Qwen3.5's template has models write them, as what they mean."""
    return {
        key: _PYTHON[value]
        if isinstance(value, str) and value in _PYTHON and properties.get(key, {}).get("type") != "string"
        else value
        for key, value in arguments.items()
    }
