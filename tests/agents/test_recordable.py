"""Whatever a model says, a log takes it, and the environment answers a call that it cannot take."""

from functools import reduce
from typing import Any

import msgspec
import pytest

from moonmill import Message, ToolCall, make
from moonmill.agents.recordable import recordable
from moonmill.agents.scripted import ScriptedAgent
from moonmill.types import Status
from tests.agents.test_runner import play

HALF = "\ud800"
DEEP = reduce(lambda inner, _: [inner], range(900), "deep")


def said(arguments: dict[str, Any] | str, name: str = "calculate", **more: Any) -> Message:
    return Message("assistant", tool_calls=(ToolCall("1", name, arguments),), **more)


def test_what_a_log_takes_is_left_as_it_is() -> None:
    message = said({"expression": "2+2", "more": [1, 2.5, None, {"a": True}]}, content="so: ä", reasoning="…")
    assert recordable(message) == message


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    message = recordable(said({HALF: [HALF]}, f"x{HALF}", content=f"a{HALF}", reasoning=HALF))
    assert (message.content, message.reasoning) == ("a?", "?")
    assert message.tool_calls == (ToolCall("1", "x?", {"?": ["?"]}),)
    assert recordable(said(HALF)).tool_calls == (ToolCall("1", "calculate", "?"),)


@pytest.mark.parametrize(
    ("value", "why"),
    [(DEEP, "nested more than 64 deep"), (10**30, "ints"), (10**5000, "ints"), (object(), "object is unsupported")],
    ids=["deep", "big", "long", "no JSON"],
)
def test_arguments_that_no_log_takes_become_an_error(value: object, why: str) -> None:
    (call,) = recordable(said({"expression": value})).tool_calls
    assert (call.id, call.name, call.arguments) == ("1", "calculate", {})
    assert call.error is not None
    assert why in call.error


@pytest.mark.parametrize("value", [HALF, DEEP, 10**5000, 10**30], ids=["half", "deep", "long", "big"])
def test_an_episode_goes_on_and_is_recorded(value: object) -> None:
    turns = iter([said({"expression": value}), Message("assistant", "4")])
    rollout = play(lambda: make("calculator-v0"), ScriptedAgent(lambda *_: next(turns)))
    assert rollout.status is Status.FINISHED
    assert rollout.tool_faults
    assert msgspec.json.decode(msgspec.json.encode(rollout), type=type(rollout)) == rollout
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rollout), type=type(rollout)) == rollout
