"""One suite for the chat formats of all model families: what is rendered is read back, and a conversation that grows
keeps what was sampled."""

import json
import random
import runpy
from pathlib import Path

import pytest

from moonmill.agents.capabilities import say
from moonmill.agents.rendering import TurnRenderer
from moonmill.envs import ToolSpec
from moonmill.types import Message, ToolCall

from .formats import FAMILIES, load_family

SCHEMA = {
    "type": "object",
    "properties": {
        "expression": {"type": "string"},
        "digits": {"type": "integer"},
        "exact": {"type": "boolean"},
        "more": {"type": "object"},
        "units": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["expression"],
}
TOOLS = (
    ToolSpec("calculate", "Work it out.", SCHEMA),
    ToolSpec("look_up", "Find a word.", {"type": "object", "properties": {"word": {"type": "string"}}}),
)
SYSTEM = Message("system", "Be brief.")
QUESTION = (SYSTEM, Message("user", "What is 12+34?"))
CALL = ToolCall("call00001", "calculate", {"expression": "12+34"})
OTHER = ToolCall("call00002", "look_up", {"word": "moon"})
RESULT = Message("tool", "46", tool_call_id="call00001", name="calculate")
ALSO = Message("tool", "a satellite", tool_call_id="call00002", name="look_up")
USER = Message("user", "And 1+1?")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TurnRenderer]:
    def folder(name: str) -> Path:
        return tmp_path_factory.mktemp(name.replace(".", "_"))

    return {name: load_family(name, folder(name)) for name in FAMILIES}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, loaded: dict[str, TurnRenderer]) -> TurnRenderer:
    return loaded[request.param]


def question(renderer: TurnRenderer) -> tuple[Message, ...]:
    return QUESTION if renderer.capabilities.system else QUESTION[1:]


def read(renderer: TurnRenderer, message: Message) -> Message:
    """The message that a policy's turn is read as, in which it says `message`."""
    said = say(renderer, question(renderer), message, TOOLS)
    return renderer.parse(said, renderer.render(question(renderer), TOOLS, open_turn=True), TOOLS)


# Prompts


def test_the_prompt_shows_every_message_and_tool_in_order(family: TurnRenderer) -> None:
    text = family.decode(family.prompt(question(family), TOOLS))
    assert all(text.count(word) for word in ("calculate", "Work it out.", "expression", "look_up", "Find a word."))
    assert ("Be brief." in text) == family.capabilities.system
    if family.capabilities.system and family.capabilities.tells_tools is False:
        assert text.index("Be brief.") < text.index("calculate") < text.index("What is 12+34?")


def test_a_tool_that_the_format_does_not_tell_is_described_with_an_example_of_a_call(family: TurnRenderer) -> None:
    text = family.decode(family.prompt(question(family), TOOLS))
    assert ("You can call these tools:" in text) == (not family.capabilities.tells_tools)
    if not family.capabilities.tells_tools:
        example = text.partition("To call one, write:\n")[2]
        [call, *_] = family.parse(family.encode(example), (), TOOLS).tool_calls
        assert (call.name, call.arguments, call.error) == ("name", {"argument": "value"}, None)


def test_a_prompt_without_tools_tells_none(family: TurnRenderer) -> None:
    text = family.decode(family.prompt(question(family)))
    assert "What is 12+34?" in text
    assert "tool" not in text.replace("<|tool", "")


def test_a_prompt_may_hold_calls_and_their_results(family: TurnRenderer) -> None:
    results = family.prompt([*question(family), Message("assistant", tool_calls=(CALL,)), RESULT], TOOLS)
    assert "46" in family.decode(results)


# What is said is read back


@pytest.mark.parametrize("text", ["46", "It is 46, i.e. 46.0 {sic}.", "línea 1\nline 2 — 月 🌙"])
def test_text_is_read_back(family: TurnRenderer, text: str) -> None:
    message = read(family, Message("assistant", text))
    assert (message.content, message.tool_calls) == (text, ())


ARGUMENTS = [
    {"expression": "12+34"},
    {"expression": "12+34", "digits": 3, "exact": True},
    {"expression": "12+34", "digits": -1, "exact": False, "units": ["m", "s"]},
    {"expression": "a", "more": {"deep": {"er": [1, 2.5, None, True, "x"]}, "empty": {}}},
    {"expression": "quotes \" and ' and \\ and {braces}, [brackets]: <tags>"},
    {"expression": "two\nlines\tand a tab"},
    {"expression": "línea — 月 🌙 \u200d"},
    {"expression": ""},
    {"expression": "7"},
    {"expression": "null"},
    {"expression": "{}"},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_a_call_is_read_back(family: TurnRenderer, arguments: dict[str, object]) -> None:
    [call] = read(family, Message("assistant", tool_calls=(ToolCall("call00001", "calculate", arguments),))).tool_calls
    assert (call.name, call.arguments, call.error) == ("calculate", arguments, None)


def test_several_calls_are_read_back_in_their_order_where_there_can_be_several(family: TurnRenderer) -> None:
    if not family.capabilities.parallel_calls:
        return
    calls = read(family, Message("assistant", tool_calls=(CALL, OTHER, CALL))).tool_calls
    assert [(c.name, c.arguments) for c in calls] == [(c.name, c.arguments) for c in (CALL, OTHER, CALL)]
    assert len({c.id for c in calls}) == 3


def test_a_tool_that_is_not_there_is_left_to_the_environment(family: TurnRenderer) -> None:
    [call] = read(family, Message("assistant", tool_calls=(ToolCall("call00001", "fly", {"to": "moon"}),))).tool_calls
    assert (call.name, call.arguments, call.error) == ("fly", {"to": "moon"}, None)


def test_a_thought_is_kept_apart_where_the_format_can(family: TurnRenderer) -> None:
    if not family.capabilities.reasoning:
        return
    message = read(family, Message("assistant", "46", reasoning="12+34\nis 46"))
    if message.reasoning is not None:  # else the format leaves thoughts out of what it renders
        assert (message.reasoning, message.content) == ("12+34\nis 46", "46")


def test_the_end_of_a_turn_is_a_stop_token(family: TurnRenderer) -> None:
    for message in (Message("assistant", "46"), Message("assistant", tool_calls=(CALL,))):
        said = say(family, question(family), message, TOOLS)
        assert [token in family.stop_token_ids for token in said] == [False] * (len(said) - 1) + [True]


# Conversations that grow

CONVERSATIONS: dict[str, list[tuple[Message, tuple[Message, ...]]]] = {
    "text": [(Message("assistant", "46"), (USER,)), (Message("assistant", "2"), (USER,))],
    "call": [(Message("assistant", tool_calls=(CALL,)), (RESULT,)), (Message("assistant", "It is 46."), (USER,))],
    "calls": [(Message("assistant", tool_calls=(CALL, OTHER)), (RESULT, ALSO)), (Message("assistant", "46"), (USER,))],
    "call after call": [
        (Message("assistant", tool_calls=(CALL,)), (RESULT,)),
        (Message("assistant", tool_calls=(OTHER,)), (ALSO,)),
        (Message("assistant", "It is 46."), (USER,)),
    ],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_grows_to_what_is_rendered_at_once(family: TurnRenderer, name: str) -> None:
    turns = CONVERSATIONS[name]
    if name == "calls" and not family.capabilities.parallel_calls:
        return
    history = [*question(family)]
    context = family.prompt(history, TOOLS)
    for said, new in turns:
        completion = say(family, history, said, TOOLS, new)
        added = family.extend(context, completion, new, TOOLS)
        assert added is not None
        context = [*context, *completion, *added]
        history += [said, *new]
        if family.capabilities.stable:
            assert family.decode(context) == family.decode(family.prompt(history, TOOLS))
            assert context == family.prompt(history, TOOLS)
    opening = family.decode(family.prompt(question(family)))[-8:]
    assert family.decode(context).endswith(opening)
    assert all(message.content in family.decode(context) for _, new in turns for message in new)


def test_a_thought_that_was_sampled_stays(family: TurnRenderer) -> None:
    if not family.capabilities.reasoning:
        return
    prompt = family.prompt(question(family))
    completion = [*family.encode("<think>\nhm\n</think>\n\n46"), family.stop_token_ids[0]]
    first = family.extend(prompt, completion, (USER,))
    assert first is not None
    context = [*prompt, *completion, *first]
    second = family.extend(context, completion, (USER,))
    assert second is not None
    assert family.decode([*context, *completion, *second]).count("hm") == 2


def test_a_turn_cut_by_its_length_is_closed_first(family: TurnRenderer) -> None:
    prompt = family.prompt(question(family), TOOLS)
    said = say(family, question(family), Message("assistant", "it is forty six"), TOOLS)[:-4]
    for new in ((USER,), (RESULT,)):
        added = family.extend(prompt, said, new, TOOLS)
        assert added is not None
        closers = [*family.stop_token_ids, *family.encode("<|end|>")]
        thought = family.encode("</think>")
        rest = added[len(thought) :] if added[: len(thought)] == thought else added
        assert rest[0] in closers, family.decode(added)
        assert new[0].content in family.decode(added)


@pytest.mark.parametrize("new", [(USER,), (RESULT,), (RESULT, ALSO)], ids=["user", "result", "results"])
def test_whatever_was_sampled_is_kept_and_gone_on_from(family: TurnRenderer, new: tuple[Message, ...]) -> None:
    rng = random.Random(7)
    tags = [*family._tokenizer.added_tokens_decoder]
    inside = [i for i in (*range(256), *tags * 4) if i not in family.stop_token_ids]
    prompt = family.prompt(question(family), TOOLS)
    for stop in (None, *family.stop_token_ids):
        for _ in range(15):
            body = rng.choices(inside, k=rng.randint(1, 8))
            completion = [*body, stop] if stop is not None else body
            family.parse(completion, prompt, TOOLS)
            added = family.extend(prompt, completion, new, TOOLS)
            assert added is not None, family.decode(completion)
            assert all(message.content in family.decode(added) for message in new)


def test_a_result_that_does_not_name_its_tool_takes_the_name_from_its_call(family: TurnRenderer) -> None:
    history = [*question(family), Message("assistant", tool_calls=(CALL,))]
    named, unnamed = (family.prompt([*history, Message("tool", "46", (), "call00001", n)]) for n in ("calculate", None))
    assert named == unnamed


# What is not a call


def cut(renderer: TurnRenderer, message: Message) -> list[int]:
    """A turn that ends within its call."""
    said = say(renderer, question(renderer), message, TOOLS)
    value = renderer.decode(said).rindex("34")
    return [*renderer.encode(renderer.decode(said)[:value]), renderer.stop_token_ids[0]]


def test_a_call_that_is_not_closed_carries_an_error(family: TurnRenderer) -> None:
    prompt = family.render(question(family), TOOLS, open_turn=True)
    [call] = family.parse(cut(family, Message("assistant", tool_calls=(CALL,))), prompt, TOOLS).tool_calls
    assert call.error is not None


def test_a_call_with_damaged_arguments_carries_an_error(family: TurnRenderer) -> None:
    said = family.decode(say(family, question(family), Message("assistant", tool_calls=(CALL,)), TOOLS))
    damaged = said.replace('{"expression": "12+34"}', '{"expression": 12+34"')
    if damaged == said:  # arguments that are no JSON object: see the next test
        return
    prompt = family.render(question(family), TOOLS, open_turn=True)
    [call] = family.parse(family.encode(damaged), prompt, TOOLS).tool_calls
    assert call.error is not None
    assert isinstance(call.arguments, str)


@pytest.mark.parametrize("text", ["", " ", "{", "}", "[" * 3000, json.dumps({"name": 5}), "<tool_call>", "</think>"])
def test_nothing_a_policy_writes_raises(family: TurnRenderer, text: str) -> None:
    message = family.parse([*family.encode(text), family.stop_token_ids[0]], family.prompt(question(family)), TOOLS)
    assert message.role == "assistant"


@pytest.mark.parametrize(
    "text", ['{"name": "calculate", "parameters"', '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}']
)
def test_what_begins_as_a_call_without_tags_is_one_or_an_error(loaded: dict[str, TurnRenderer], text: str) -> None:
    renderer = loaded["llama-3"]
    completion = [*renderer.encode(text), renderer.stop_token_ids[0]]
    [call] = renderer.parse(completion, (), TOOLS).tool_calls
    assert call.error is not None
    assert call.error.startswith("a call is a turn of its own")
    assert renderer.parse(completion).content == text


def test_arguments_with_a_tag_each_are_left_to_the_environment(loaded: dict[str, TurnRenderer]) -> None:
    renderer = loaded["glm-5"]
    said = renderer.decode(say(renderer, QUESTION, Message("assistant", tool_calls=(CALL,)), TOOLS))
    pair = "<arg_key>digits</arg_key><arg_value>many</arg_value></tool_call>"
    [call] = renderer.parse(renderer.encode(said.replace("</tool_call>", pair)), (), TOOLS).tool_calls
    assert (call.arguments, call.error) == ({"expression": "12+34", "digits": "many"}, None)


def test_the_page_about_formats_is_up_to_date(loaded: dict[str, TurnRenderer]) -> None:
    root = Path(__file__).parents[2]
    page = runpy.run_path(str(root / "docs" / "make_formats.py"))["page"]
    made = page({name: renderer.capabilities for name, renderer in loaded.items()})
    assert (root / "docs" / "formats.md").read_text() == made, "run: python docs/make_formats.py"
