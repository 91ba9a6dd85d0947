"""A person in the model's place: lines become answers and tool calls."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from moonmill.agents.agent import Turn
from moonmill.agents.human import HINT, HumanAgent, UnclearError, parse_arguments
from moonmill.envs import ToolSpec
from moonmill.types import Message

NUMBER = {"type": "number"}
TEXT = {"type": "string"}
CONVERT = {"value": NUMBER, "to": {"enum": ["mi", "km"]}}
TOOLS = (
    ToolSpec("calculate", "Calculate.", {"properties": {"expression": TEXT}, "required": ["expression"]}),
    ToolSpec("convert", "Convert.", {"properties": CONVERT, "required": ["value", "to"]}),
)


def act(*lines: str, turns: int = 0, tell: Callable[[str], None] = lambda text: None) -> list[Turn]:
    """What the agent makes of these lines, by default one turn each."""
    typed = iter(lines)
    session = HumanAgent(lambda: next(typed), lambda message: None, tell, TOOLS).session(TOOLS, 0)

    async def main() -> list[Turn]:
        return [await session.act(()) for _ in range(turns or len(lines))]

    return anyio.run(main)


def told(*lines: str) -> str:
    """What is said to a person who types these lines and then an answer: they cost no turn."""
    said: list[str] = []
    [turn] = act(*lines, "the answer", turns=1, tell=said.append)
    assert turn.message == Message("assistant", "the answer")
    return "\n".join(said)


def test_shows_every_new_message_before_it_asks() -> None:
    events: list[str] = []
    session = HumanAgent(lambda: str(events.append("asked")), lambda m: events.append(m.content), print).session((), 0)
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
        ("3.5 mi", CONVERT, {"value": 3.5, "to": "mi"}),
        ("3.5 to=mi", CONVERT, {"value": 3.5, "to": "mi"}),
        ("'two words' 3", {"name": TEXT, "n": NUMBER}, {"name": "two words", "n": 3}),
        ("a=b 3", {"name": TEXT, "n": NUMBER}, {"name": "a=b", "n": 3}),
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
        ('"2 * 3"', {"expression": TEXT}, {"expression": "2 * 3"}),
        ('"a" + "b"', {"expression": TEXT}, {"expression": '"a" + "b"'}),
    ],
)
def test_arguments_are_read_as_the_schema_wants_them(
    text: str, properties: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert parse_arguments(text, ToolSpec("go", "", {"properties": properties})) == arguments


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("ls -l shop", {"command": "ls -l shop"}),
        ("grep -n 'def f' a.py timeout=5", {"command": "grep -n 'def f' a.py", "timeout": 5}),
        ("command='ls -l' timeout=5", {"command": "ls -l", "timeout": 5}),
        ('"ls -l"', {"command": "ls -l"}),
        ("x=3 env", {"command": "x=3 env"}),
        ("echo it's", {"command": "echo it's"}),
    ],
)
def test_all_of_the_text_is_the_one_argument_that_is_needed(text: str, arguments: dict[str, Any]) -> None:
    tool = ToolSpec("bash", "", {"properties": {"command": TEXT, "timeout": NUMBER}, "required": ["command"]})
    assert parse_arguments(text, tool) == arguments


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"value": ', "this begins like a JSON object but is none"),
        ("what is this", r"/go takes values for value, to, and these are 3 \(a value with spaces stands in quotes\)"),
        ("value='3", "a quote is not closed"),
        ("to=mi 3", "a value without a name stands behind one with a name"),
        ("3 value=4", "a parameter has two values"),
        ("3", "to missing"),
        ("", "value and to missing"),
    ],
)
def test_what_cannot_be_read_is_answered_with_what_to_type(text: str, words: str) -> None:
    tool = ToolSpec("go", "", {"properties": CONVERT, "required": ["value", "to"]})
    with pytest.raises(UnclearError, match=f"{words}.*/go value=… to=…"):
        parse_arguments(text, tool)


def test_a_json_object_is_taken_as_it_stands_so_that_wrong_calls_can_be_tried() -> None:
    tool = ToolSpec("go", "", {"properties": CONVERT, "required": ["value", "to"]})
    assert parse_arguments('{"vaule": 3}', tool) == {"vaule": 3}


def test_a_tool_without_parameters_takes_no_values() -> None:
    with pytest.raises(UnclearError, match="/go takes no values, and these are 2"):
        parse_arguments("a b", ToolSpec("go", "", {}))


def test_a_line_that_cannot_be_read_is_asked_again_and_costs_no_turn() -> None:
    assert "a value with spaces stands in quotes); type /convert value=… to=…" in told("/convert 1 to mi")


def test_an_empty_line_is_no_answer() -> None:
    assert told("", "  ") == f"{HINT}\n{HINT}"


def test_help_costs_no_turn_and_names_the_ways_to_call() -> None:
    text = told("/help")
    for way in ("/NAME value value", "/NAME name=value", '/NAME {"name": value}', "/tools", "/quit"):
        assert way in text


def test_tools_are_listed_with_their_parameters() -> None:
    assert told("/tools").splitlines() == [
        "/calculate expression=…: Calculate.",
        "  expression: string",
        "/convert value=… to=…: Convert.",
        "  value: number",
        '  to: {"enum": ["mi", "km"]}',
    ]


def test_tools_of_others_are_told_as_ours_are_and_at_once_where_they_are_new() -> None:
    schema = {"properties": {"text": {"title": "Text", "type": "string"}}, "required": ["text"]}
    tool = ToolSpec("add", "Add a text.\n\nAt the end.\n\nArgs:\n    text: what is added", schema)
    told: list[str] = []
    agent = HumanAgent(lambda: "/tools" if len(told) < 2 else "done", lambda message: None, told.append)
    session = agent.session((tool,), 0)
    assert told == ["/add text=…: Add a text."]
    anyio.run(session.act, ())
    assert told[1].splitlines() == ["/add text=…: Add a text.", "  text: string, what is added"]
    agent.session((tool,), 0)
    assert len(told) == 2


def test_what_was_seen_is_not_shown_again_where_a_program_sends_all_of_it() -> None:
    shown: list[str] = []
    agent = HumanAgent(lambda: "4", lambda message: shown.append(message.content), print)
    asked = Message("user", "2+2")
    turn = anyio.run(agent.session((), 0).act, (asked,))
    anyio.run(agent.session((), 0).act, (asked, turn.message, Message("user", "Sure?")))
    assert shown == ["2+2", "Sure?"]
    anyio.run(agent.session((), 0).act, (Message("user", "3+3"),))
    assert shown == ["2+2", "Sure?", "3+3"]


def test_quit_leaves_as_the_end_of_the_input_does() -> None:
    with pytest.raises(EOFError):
        act("/quit")


def test_a_tool_goes_before_a_command_of_its_name() -> None:
    session = HumanAgent(lambda: "/help", lambda m: None, print).session((ToolSpec("help", "", {}),), 0)
    assert anyio.run(session.act, ()).message.tool_calls[0].name == "help"


def test_a_blocked_question_can_be_cancelled() -> None:
    never = threading.Event()
    session = HumanAgent(lambda: str(never.wait(5)), lambda m: None, print).session((), 0)

    async def main() -> bool:
        with anyio.move_on_after(0.05) as scope:
            await session.act(())
        return scope.cancelled_caught

    try:
        assert anyio.run(main)
    finally:
        never.set()
