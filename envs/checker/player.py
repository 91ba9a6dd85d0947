"""A player that knows nothing but the tools' schemas: mostly right calls, some wrong ones, in the end an answer.

What it says is decided by its seed and by what it was told, so that an environment which answers alike is played alike.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from moonmill.envs.tools import ToolSpec
from moonmill.types import Message, ToolCall

_TEXTS = ("", "0", "1+1", "a", "hello world", "naïve ☃ 日本", "line\nbreak", "<call>", "x" * 300)
_DEEPEST = 4
"""Arrays and objects stand in one another no deeper where a schema refers to itself."""
_RIGHT = 0.75
"""Share of the calls that keep to the schema."""
_TWO = 0.2
"""Share of the turns with two calls."""


class RandomPlayer:
    """Says what comes next in one episode.

    Args:
        tools: what can be called.
        seed: decides what is.
        turns: it answers after so many turns with calls.
    """

    def __init__(self, tools: Sequence[ToolSpec], seed: int, turns: int = 5) -> None:
        self._tools = tools
        self._rng = Random(seed)
        self._turns = turns if tools else 0
        self._words: list[str] = [*_TEXTS]
        self._said = 0
        self.right: dict[str, ToolCall] = {}
        """The calls it made that keep to their schema, by id."""

    def say(self, new_messages: Sequence[Message]) -> Message:
        """The next message, given what came since the last."""
        for message in new_messages:
            self._words += [message.content[:200], *message.content.split()[:50]]
        if self._said >= self._turns:
            return Message("assistant", self._text())
        self._said += 1
        count = 2 if self._rng.random() < _TWO else 1
        return Message("assistant", tool_calls=tuple(self._call(f"call-{self._said}-{n}") for n in range(count)))

    def _call(self, id: str) -> ToolCall:
        tool = self._rng.choice(self._tools)
        arguments = value_for(tool.parameters, self._rng, self._words, tool.parameters.get("$defs", {}))
        if self._rng.random() < _RIGHT:
            call = ToolCall(id, tool.name, arguments)
            self.right[id] = call
            return call
        wrong: list[tuple[str, Any]] = [
            (tool.name, {**arguments, "no_such_argument": 1}),
            (tool.name, {name: [None] for name in arguments}),
            (tool.name, {}),
            (tool.name, json.dumps(arguments)[:-1]),
            (f"no_such_{tool.name}"[:64], arguments),
        ]
        return ToolCall(id, *self._rng.choice(wrong))

    def _text(self) -> str:
        return self._rng.choice(self._words)


def value_for(
    schema: Mapping[str, Any], rng: Random, words: Sequence[str], definitions: Mapping[str, Any], depth: int = 0
) -> Any:
    """A value that a JSON schema allows; patterns and formats are not looked at.

    Args:
        schema: as tools have it.
        rng: decides which.
        words: texts to choose from.
        definitions: what `$ref`s refer to.
        depth: of the values it is in.
    """
    if "$ref" in schema:
        schema = {**definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), **schema}
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        simple = [o for o in options if "$ref" not in o and o.get("type") not in ("array", "object")]
        return value_for(rng.choice(simple or options if depth > _DEEPEST else options), rng, words, definitions, depth)
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    match kind:
        case "object":
            return _object(schema, rng, words, definitions, depth)
        case "array":
            least = schema.get("minItems", 0)
            most = least if depth > _DEEPEST else min(schema.get("maxItems", least + 3), least + 3)
            fixed = [value_for(item, rng, words, definitions, depth + 1) for item in schema.get("prefixItems", ())]
            item = schema.get("items") or {}
            more = max(0, rng.randint(least, max(least, most)) - len(fixed)) if schema.get("items") is not False else 0
            return [*fixed, *(value_for(item, rng, words, definitions, depth + 1) for _ in range(more))]
        case "integer":
            return _whole(schema, rng, words)
        case "number":
            low, high = _range(schema)
            return rng.choice([_whole(schema, rng, words), round(rng.uniform(low, high), 3)])
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
    least = schema.get("minLength", 0)
    return rng.choice(words).ljust(least, "a")[: schema.get("maxLength")]


def _object(
    schema: Mapping[str, Any], rng: Random, words: Sequence[str], definitions: Mapping[str, Any], depth: int
) -> dict[str, Any]:
    needed = schema.get("required", ())
    found = {
        name: value_for(inner, rng, words, definitions, depth + 1)
        for name, inner in schema.get("properties", {}).items()
        if name in needed or (depth <= _DEEPEST and rng.random() < 0.5)
    }
    others = schema.get("additionalProperties")
    if isinstance(others, dict) and depth <= _DEEPEST:
        found |= {f"key{n}": value_for(others, rng, words, definitions, depth + 1) for n in range(rng.randint(0, 2))}
    return found


def _whole(schema: Mapping[str, Any], rng: Random, words: Sequence[str]) -> int:
    low, high = _range(schema)
    told = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 16]
    fitting = [number for number in (*told, 0, 1) if low <= number <= high]
    step = int(schema.get("multipleOf", 1))
    return rng.choice([*fitting[-8:], rng.randint(int(low), int(high))]) // step * step


def _range(schema: Mapping[str, Any]) -> tuple[float, float]:
    low = schema.get("minimum", schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else None)
    if low is None:
        low = -10 if high is None else high - 100
    return low, max(low, low + 100 if high is None else high)
