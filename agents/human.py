"""You are the model: an agent at the terminal.

A line that begins with `/` calls a tool, anything else is the answer:

    /calculate 12*34                 the single argument of a tool with one
    /convert value=3.5 to=mi         several arguments, each read as JSON, else as text
    /convert {"value": 3.5}          the arguments as one JSON object
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio.to_thread

from moonmill.agents.agent import Session, Turn
from moonmill.envs import ToolSpec
from moonmill.types import Message, ToolCall


class HumanAgent:
    """Shows each new message through `show` and asks for an answer through `ask`, which may block."""

    def __init__(self, ask: Callable[[], str], show: Callable[[Message], None]) -> None:
        self.ask = ask
        self.show = show

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return _HumanSession(self, tools)


class _HumanSession:
    def __init__(self, agent: HumanAgent, tools: tuple[ToolSpec, ...]) -> None:
        self._agent = agent
        self._tools = {t.name: t for t in tools}
        self._calls = 0

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        for message in new_messages:
            self._agent.show(message)
        line = await anyio.to_thread.run_sync(self._agent.ask, abandon_on_cancel=True)
        if not line.startswith("/"):
            return Turn(Message("assistant", line))
        self._calls += 1
        return Turn(Message("assistant", tool_calls=(self._call(line[1:]),)))

    def _call(self, line: str) -> ToolCall:
        name, _, rest = line.strip().partition(" ")
        spec = self._tools.get(name)
        properties = spec.parameters.get("properties", {}) if spec else {}
        return ToolCall(f"call-{self._calls}", name, parse_arguments(rest.strip(), properties))


def parse_arguments(text: str, properties: Mapping[str, Any]) -> dict[str, Any] | str:
    """The arguments a person typed after a tool's name; the text itself where it cannot be read.

    Args:
        text: what stands behind the tool's name.
        properties: the tool's parameters, by name, as JSON schemas.
    """
    if not text:
        return {}
    if text.startswith("{"):
        value = _json_or_text(text)
        return value if isinstance(value, dict) else text
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    pairs = [word.partition("=") for word in words]
    if all(equals and key in properties for key, equals, _ in pairs):
        return {key: _value(value, properties[key]) for key, _, value in pairs}
    if len(properties) == 1:
        [(name, schema)] = properties.items()
        return {name: _value(text, schema)}
    return text


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """`text` as the schema wants it: where it may be a string it stays as typed, all else is read as JSON."""
    options = [schema, *schema.get("anyOf", ())]
    if any(o.get("type") == "string" or text in o.get("enum", ()) for o in options):
        return text
    return _json_or_text(text)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
