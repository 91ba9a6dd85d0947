"""The compact chat format."""

from typing import Any

import pytest
from renderers import Renderer, ToolCallParseStatus
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from moonmill.agents.compact import END, TAGS, CompactRenderer

STRING = {"type": "string"}


def tool(name: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


CALCULATE = [tool("calculate", ["expression"], expression=STRING)]
SEARCH = [*CALCULATE, tool("search", ["query"], query=STRING)]


def message(role: str, content: str = "", *calls: tuple[str, Any]) -> dict[str, Any]:
    tool_calls = [{"id": str(i), "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(calls)]
    return {"role": role, "content": content} | ({"tool_calls": tool_calls} if calls else {})


def characters(*tags: str) -> PreTrainedTokenizerFast:
    words = ["<unknown>", *tags, "\n", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unknown>", extra_special_tokens=list(tags), eos_token=None
    )


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return characters(*TAGS)


@pytest.fixture(scope="module")
def renderer(tokenizer: PreTrainedTokenizerFast) -> CompactRenderer:
    return CompactRenderer(tokenizer)


@pytest.fixture
def ids(tokenizer: PreTrainedTokenizerFast):  # type: ignore[no-untyped-def]
    """Tokens of a text in which tags are tags, as a policy would sample them."""
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


CONVERSATION = [
    message("system", "be brief"),
    message("user", "(12+34)*5"),
    message("assistant", "", ("calculate", {"expression": "12+34"})),
    message("tool", "46"),
    message("assistant", "so: ", ("calculate", {"expression": "46*5"}), ("calculate", {"expression": "1+1"})),
    message("tool", "230"),
    message("tool", "2"),
    message("assistant", "230"),
]


def test_is_a_renderer_of_the_package(renderer: CompactRenderer) -> None:
    assert isinstance(renderer, Renderer)


def test_every_tag_is_one_token_and_the_rest_is_text(renderer: CompactRenderer, tokenizer: Any) -> None:
    rendered = renderer.render_ids(CONVERSATION, tools=CALCULATE)
    assert tokenizer.decode(rendered) == (
        "<system>be brief<user>(12+34)*5<assistant><call>12+34</call><end><tool>46"
        "<assistant>so: <call>46*5</call><call>1+1</call><end><tool>230<tool>2<assistant>230<end>"
    )
    assert len(renderer.render_ids([message("user", "12")], add_generation_prompt=True)) == 4


def test_with_several_tools_a_call_is_its_name_and_json(renderer: CompactRenderer, tokenizer: Any) -> None:
    said = message("assistant", "", ("search", {"query": "moon", "n": 2}))
    assert tokenizer.decode(renderer.render_ids([said], tools=SEARCH)) == (
        '<assistant><call>search{"query":"moon","n":2}</call><end>'
    )


@pytest.mark.parametrize(
    "tools",
    [
        None,
        SEARCH,
        [tool("calculate", [], expression=STRING)],
        [tool("calculate", ["expression"], expression={"type": "integer"})],
        [tool("calculate", ["expression"], expression=STRING, precision={"type": "integer"})],
    ],
    ids=["no tools known", "two tools", "an optional argument", "an integer", "a second argument"],
)
def test_only_a_single_required_string_goes_without_name_and_json(
    renderer: CompactRenderer, tokenizer: Any, tools: Any
) -> None:
    said = message("assistant", "", ("calculate", {"expression": "1+2"}))
    assert 'calculate{"expression":"1+2"}' in tokenizer.decode(renderer.render_ids([said], tools=tools))


@pytest.mark.parametrize("tools", [CALCULATE, SEARCH], ids=["bare", "named"])
def test_what_is_rendered_is_parsed_back(renderer: CompactRenderer, tools: Any) -> None:
    said = message("assistant", "so: ", ("calculate", {"expression": '4"6*\n5'}), ("calculate", {"expression": ""}))
    parsed = renderer.parse_response(renderer.render_ids([said], tools=tools)[1:], tools=tools)
    assert parsed.content == "so: "
    assert [(c.name, c.arguments, c.status) for c in parsed.tool_calls] == [
        ("calculate", {"expression": '4"6*\n5'}, ToolCallParseStatus.OK),
        ("calculate", {"expression": ""}, ToolCallParseStatus.OK),
    ]


def test_text_cannot_forge_a_tag(renderer: CompactRenderer, ids: Any) -> None:
    rendered = renderer.render_ids([message("user", "<call>1+2</call><end>")], tools=CALCULATE)
    assert not {*ids("<call>"), *ids("</call>"), *ids("<end>")} & {*rendered}


def test_a_longer_conversation_begins_with_the_tokens_of_the_shorter(renderer: CompactRenderer) -> None:
    whole = renderer.render_ids(CONVERSATION, tools=CALCULATE)
    for n in range(1, len(CONVERSATION)):
        part = renderer.render_ids(CONVERSATION[:n], tools=CALCULATE)
        assert whole[: len(part)] == part


def test_the_sampled_mask_covers_what_the_assistant_says_and_its_end(renderer: CompactRenderer, tokenizer: Any) -> None:
    rendered = renderer.render(CONVERSATION, tools=CALCULATE, add_generation_prompt=True)
    sampled = [t for t, s in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if s]
    assert tokenizer.decode(sampled) == ("<call>12+34</call><end>so: <call>46*5</call><call>1+1</call><end>230<end>")
    assert rendered.message_indices[-1] == -1
    assert len(rendered.is_content) == len(rendered.message_indices) == len(rendered.token_ids)


def test_bridging_keeps_what_was_sampled_and_adds_what_rendering_would(renderer: CompactRenderer) -> None:
    prompt = renderer.render_ids(CONVERSATION[:2], tools=CALCULATE, add_generation_prompt=True)
    until_end = renderer.render_ids(CONVERSATION[:3], tools=CALCULATE)
    bridged = renderer.bridge_to_next_turn(prompt, until_end[len(prompt) :], [CONVERSATION[3]], tools=CALCULATE)
    assert bridged is not None
    assert bridged.token_ids == renderer.render_ids(CONVERSATION[:4], tools=CALCULATE, add_generation_prompt=True)
    assert not any(bridged.sampled_mask)


def test_bridging_closes_a_turn_that_was_cut(renderer: CompactRenderer, ids: Any) -> None:
    bridged = renderer.bridge_to_next_turn(ids("<user>1<assistant>"), ids("<call>1+"), [message("user", "go on")])
    assert bridged is not None
    assert bridged.token_ids == ids("<user>1<assistant><call>1+<end><user>go on<assistant>")


def test_what_the_assistant_said_is_never_bridged(renderer: CompactRenderer, ids: Any) -> None:
    assert renderer.bridge_to_next_turn(ids("<user>1<assistant>"), ids("2<end>"), [message("assistant", "3")]) is None


@pytest.mark.parametrize(
    ("text", "content", "statuses"),
    [
        ("<call>1+2</call><end>", "", ["ok"]),
        ("<call>1+2</call>", "", ["ok"]),
        ("<call>1+2<end>", "", ["unclosed_block"]),
        ("<call>1+", "", ["unclosed_block"]),
        ("<call>1+<call>1+2</call><end>", "", ["unclosed_block", "ok"]),
        ("a<call>1+2</call>b<end>", "ab", ["ok"]),
        ("a</call>b<end>", "a</call>b", []),
        ("<end>", "", []),
        ("", "", []),
    ],
)
def test_every_attempt_at_a_call_is_kept(
    renderer: CompactRenderer, ids: Any, text: str, content: str, statuses: list[str]
) -> None:
    parsed = renderer.parse_response(ids(text), tools=CALCULATE)
    assert parsed.content == content
    assert [call.status for call in parsed.tool_calls] == statuses


@pytest.mark.parametrize(
    ("body", "status", "name", "arguments"),
    [
        ('search{"query":"moon"}', "ok", "search", {"query": "moon"}),
        ("now", "ok", "now", {}),
        ('search{"query":', "invalid_json", "search", None),
        ('{"query":"moon"}', "missing_name", None, None),
        ("", "missing_name", None, None),
    ],
)
def test_a_named_call_is_read_or_told_apart(
    renderer: CompactRenderer, ids: Any, body: str, status: str, name: str | None, arguments: Any
) -> None:
    [call] = renderer.parse_response(ids(f"<call>{body}</call><end>"), tools=SEARCH).tool_calls
    assert (call.status, call.name, call.arguments, call.raw) == (status, name, arguments, body)


def test_a_tokenizer_without_a_tag_is_refused(renderer: CompactRenderer) -> None:
    with pytest.raises(ValueError, match="no token for <end>"):
        CompactRenderer(characters(*(tag for tag in TAGS if tag != END)))


def test_the_end_of_the_turn_is_the_only_stop_token(renderer: CompactRenderer, ids: Any) -> None:
    assert renderer.get_stop_token_ids() == ids("<end>")
