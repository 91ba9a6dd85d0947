"""A person in the model's place: lines become answers and tool calls."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from moonmill.agents.agent import Turn
from moonmill.agents.human import HumanAgent, parse_arguments
from moonmill.envs import ToolSpec
from moonmill.types import Message

NUMBER = {"type": "number"}
TEXT = {"type": "string"}
CONVERT = {"value": NUMBER, "to": {"enum": ["mi", "km"]}}
TOOLS = (
    ToolSpec("calculate", "Calculate.", {"type": "object", "properties": {"expression": TEXT}}),
    ToolSpec("convert", "Convert.", {"type": "object", "properties": CONVERT}),
)


def act(*lines: str, new: tuple[Message, ...] = (), show: Callable[[Message], None] = lambda m: None) -> list[Turn]:
    """What the agent makes of these lines, one turn each."""
    typed = iter(lines)
    session = HumanAgent(lambda: next(typed), show).session(TOOLS, 0)

    async def main() -> list[Turn]:
        return [await session.act(new) for _ in lines]

    return anyio.run(main)


def test_shows_every_new_message_before_it_asks() -> None:
    events: list[str] = []
    session = HumanAgent(lambda: str(events.append("asked")), lambda m: events.append(m.content)).session((), 0)
    anyio.run(session.act, (Message("system", "be brief"), Message("user", "hello")))
    assert events == ["be brief", "hello", "asked"]


def test_a_line_is_the_answer() -> None:
    [turn] = act("it is 42")
    assert turn.message == Message("assistant", "it is 42")
    assert turn.finish_reason == "stop"


def test_a_line_that_begins_with_a_slash_is_a_call() -> None:
    [turn] = act("/calculate 12 * 34")
    [call] = turn.message.tool_calls
    assert (call.name, call.arguments) == ("calculate", {"expression": "12 * 34"})


def test_each_call_has_an_id_of_its_own() -> None:
    ids = [turn.message.tool_calls[0].id for turn in act("/calculate 1", "/calculate 1")]
    assert len(set(ids)) == 2


def test_an_unknown_tool_is_called_all_the_same_so_that_the_environment_answers() -> None:
    [turn] = act("/fly")
    assert (turn.message.tool_calls[0].name, turn.message.tool_calls[0].arguments) == ("fly", {})


@pytest.mark.parametrize(
    ("text", "properties", "arguments"),
    [
        ("", CONVERT, {}),
        ("value=3.5 to=mi", CONVERT, {"value": 3.5, "to": "mi"}),
        ('{"value": 3.5, "to": "mi"}', CONVERT, {"value": 3.5, "to": "mi"}),
        ("name='two words'", {"name": TEXT, "n": NUMBER}, {"name": "two words"}),
        ("12", {"name": TEXT}, {"name": "12"}),
        ("12", {"n": NUMBER}, {"n": 12}),
        ("[1, 2]", {"xs": {"type": "array"}}, {"xs": [1, 2]}),
        ("12", {"name": {"anyOf": [TEXT, {"type": "null"}]}}, {"name": "12"}),
        ("12", {"n": {"anyOf": [NUMBER, {"type": "null"}]}}, {"n": 12}),
        ("null", {"n": {"anyOf": [NUMBER, {"type": "null"}]}}, {"n": None}),
        ("1", {"pick": {"enum": ["1", "2"]}}, {"pick": "1"}),
        ("1", {"pick": {"enum": [1, 2]}}, {"pick": 1}),
        ("x=3", {"expression": TEXT}, {"expression": "x=3"}),
        ("a == b", {"expression": TEXT}, {"expression": "a == b"}),
    ],
)
def test_arguments_are_read_as_the_schema_wants_them(
    text: str, properties: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert parse_arguments(text, properties) == arguments


@pytest.mark.parametrize("text", ['{"value": ', "what is this", "value='3"])
def test_what_cannot_be_read_is_kept_as_text(text: str) -> None:
    assert parse_arguments(text, CONVERT) == text


def test_a_blocked_question_can_be_cancelled() -> None:
    never = threading.Event()
    session = HumanAgent(lambda: str(never.wait(5)), lambda m: None).session((), 0)

    async def main() -> bool:
        with anyio.move_on_after(0.05) as scope:
            await session.act(())
        return scope.cancelled_caught

    try:
        assert anyio.run(main)
    finally:
        never.set()
