"""The data types: the same object after a round trip, readable by other versions, and what they compute."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonmill.types import (
    SCHEMA_VERSION,
    Action,
    Completion,
    Message,
    Observation,
    Rollout,
    Sampling,
    Status,
    StopReason,
    Task,
    Timings,
    ToolCall,
    ToolFault,
    Usage,
)

text = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
tokens = st.integers(0, 2**31 - 1)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(text, values, max_size=3)


def tuples(strategy, max_size=4):
    return st.lists(strategy, max_size=max_size).map(tuple)


@st.composite
def actions(draw):
    n = draw(st.integers(0, 5))
    many = lambda s: tuple(draw(st.lists(s, min_size=n, max_size=n)))  # noqa: E731
    return Action(many(tokens), many(st.floats(-100, 0)), many(st.integers(0, 10_000)))


calls = st.builds(ToolCall, id=text, name=text, arguments=objects | text, error=st.none() | text)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=text,
    tool_calls=tuples(calls),
    tool_call_id=st.none() | text,
    name=st.none() | text,
    reasoning=st.none() | text,
)
tasks = st.builds(
    Task, prompt=text | tuples(messages), answer=values, id=text, split=text, seed=tokens, level=text, info=objects
)
rollouts = st.builds(
    Rollout,
    id=text,
    env=text,
    task=tasks,
    status=st.sampled_from(Status),
    stop_reason=st.sampled_from(StopReason),
    index=tokens,
    seed=st.integers(0, 2**63 - 1),
    group=st.none() | text,
    messages=tuples(messages),
    segments=tuples(actions() | st.builds(Observation, tokens=tuples(tokens))),
    reward=st.none() | numbers,
    rewards=st.dictionaries(text, numbers, max_size=3),
    turn_rewards=tuples(numbers),
    metrics=st.dictionaries(text, numbers, max_size=3),
    tool_faults=tuples(st.builds(ToolFault, tool=text, kind=text, count=tokens, example=text)),
    error=st.none() | text,
    usage=st.none() | st.builds(Usage, prompt=tokens, completion=tokens),
    timings=st.builds(Timings, started_at=numbers, total=numbers),
)


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@given(rollout=rollouts)
def test_a_rollout_is_the_same_after_a_round_trip(codec, rollout):
    assert codec.decode(codec.encode(rollout), type=Rollout) == rollout


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@given(action=actions(), finish=st.sampled_from(["stop", "length", "abort"]))
def test_a_completion_is_the_same_after_a_round_trip(codec, action, finish):
    completion = Completion(action.tokens, action.logprobs, action.versions, finish)
    assert codec.decode(codec.encode(completion), type=Completion) == completion


def rollout(**fields):
    defaults = {
        "id": "r",
        "env": "e-v0",
        "task": Task("?"),
        "status": Status.FINISHED,
        "stop_reason": StopReason.ANSWERED,
    }
    return Rollout(**defaults | fields)


def test_every_written_rollout_says_which_schema_it_has():
    assert msgspec.json.decode(msgspec.json.encode(rollout())).get("schema_version", SCHEMA_VERSION) == SCHEMA_VERSION


def test_a_rollout_of_a_newer_version_with_one_field_more_can_be_read():
    data = msgspec.to_builtins(rollout()) | {"something_new": 1}
    assert msgspec.convert(data, Rollout) == rollout()


def test_a_short_rollout_is_short_in_the_log():
    assert len(msgspec.json.encode(rollout())) < 150


def test_segments_say_what_they_are():
    data = msgspec.to_builtins((Observation((1,)), Action((2,), (-0.5,), (0,))))
    assert [d["kind"] for d in data] == ["observation", "action"]


def test_a_text_prompt_is_a_user_message():
    assert Task("2 + 2?").messages() == (Message("user", "2 + 2?"),)
    given = (Message("system", "Be brief."), Message("user", "2 + 2?"))
    assert Task(given).messages() == given


def test_a_rollout_counts_its_tokens_turns_and_oldest_version():
    r = rollout(
        messages=(Message("user", "?"), Message("assistant"), Message("tool", "4"), Message("assistant", "4")),
        segments=(
            Observation((1, 2, 3)),
            Action((4, 5), (-0.1, -0.2), (7, 7)),
            Observation((6,)),
            Action((7, 8, 9), (-0.1, -0.2, -0.3), (7, 6, 8)),
            Observation((10,)),
        ),
    )
    assert (r.tokens, r.action_tokens, r.turns, r.oldest_version) == (10, 5, 2, 6)
    assert rollout().oldest_version is None


def test_turns_that_the_prompt_shows_were_not_taken():
    shown = (Message("user", "1+1"), Message("assistant", "2"), Message("user", "2+2"))
    assert rollout(task=Task(shown), messages=(*shown, Message("assistant", "4"))).turns == 1


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("The answer is 42.", 42.0),
        ("3 apples and 4 pears make 7", 7.0),
        ("1,234,567.5", 1234567.5),
        ("-3.5e2", -350.0),
        ("x = −", math.nan),
        ("", math.nan),
    ],
)
def test_the_final_number_is_the_last_one_in_the_last_answer(answer, number):
    said = rollout(messages=(Message("assistant", "99"), Message("user", "100"), Message("assistant", answer)))
    assert said.final_number() == pytest.approx(number, nan_ok=True)


def test_nothing_said_has_no_number():
    assert math.isnan(rollout().final_number())


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"max_tokens": 0}])
def test_sampling_out_of_range_is_refused_when_it_is_read(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Sampling)


def test_data_is_frozen():
    with pytest.raises(AttributeError):
        Task("?").prompt = "!"  # type: ignore[misc]
