"""Messages to tokens and back, on the compact format, a real family's and an ordinary chat template's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from moonmill.agents.compact import TAGS
from moonmill.agents.rendering import MODEL_FILE, TurnRenderer, known_renderers, load_renderer
from moonmill.envs import ToolSpec
from moonmill.errors import RenderError
from moonmill.types import Message, ToolCall

SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = (ToolSpec("calculate", "Work it out.", SCHEMA),)
QUESTION = (Message("user", "what is 12+34?"),)
QWEN_TOKENS = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_compact(folder: Path) -> Path:
    words = ["<unknown>", *TAGS, "\n", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unknown>", extra_special_tokens=list(TAGS)
    ).save_pretrained(folder)
    (folder / MODEL_FILE).write_text('{"renderer": "moonmill.agents.compact:CompactRenderer"}')
    return folder


def save_bytes(folder: Path, template: str = CHATML) -> Path:
    """A tokenizer of single bytes, with a real family's tags and ChatML as its template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, extra_special_tokens=list(QWEN_TOKENS), eos_token="<|im_end|>"
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def compact_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_compact(tmp_path_factory.mktemp("compact"))


@pytest.fixture(scope="module")
def bytes_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bytes(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def compact(compact_dir: Path) -> TurnRenderer:
    return load_renderer(compact_dir)


@pytest.fixture(scope="module")
def qwen(bytes_dir: Path) -> TurnRenderer:
    return load_renderer(bytes_dir, "qwen3")


@pytest.fixture(params=["compact", "qwen"])
def renderer(request: pytest.FixtureRequest) -> TurnRenderer:
    found: TurnRenderer = request.getfixturevalue(request.param)
    return found


def ids_of(renderer: TurnRenderer, text: str) -> list[int]:
    """Tokens of a text in which tags are tags, as a policy would sample them."""
    ids: list[int] = renderer._tokenizer.encode(text, add_special_tokens=False)
    return ids


def said(renderer: TurnRenderer, message: Message) -> list[int]:
    """The tokens of a turn in which a policy says `message`."""
    ids, flags = renderer.transcript([*QUESTION, message], TOOLS)
    return [i for i, flag in zip(ids, flags, strict=True) if flag]


CALL = Message("assistant", tool_calls=(ToolCall("1", "calculate", {"expression": "12+34"}),))
RESULT = (Message("tool", "46", tool_call_id="1", name="calculate"),)


# Which renderer


def test_auto_takes_what_the_model_folder_names(compact: TurnRenderer) -> None:
    assert compact.decode(compact.prompt(QUESTION, TOOLS)) == "<user>what is 12+34?<assistant>"


def test_auto_falls_back_to_the_tokenizers_chat_template(bytes_dir: Path) -> None:
    renderer = load_renderer(bytes_dir)
    assert renderer.decode(renderer.prompt(QUESTION)) == (
        "<|im_start|>user\nwhat is 12+34?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_family_is_named(qwen: TurnRenderer) -> None:
    text = qwen.decode(qwen.prompt(QUESTION, TOOLS))
    assert json.dumps(TOOLS[0].to_openai()) in text
    assert text.endswith("<|im_start|>assistant\n")


def test_a_class_is_named_by_its_import_path_or_its_file(compact_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from moonmill.agents.compact import CompactRenderer as Mine")
    for path in ("moonmill.agents.compact:CompactRenderer", f"{tmp_path}/mine.py:Mine"):
        assert load_renderer(compact_dir, path).prompt(QUESTION) == load_renderer(compact_dir).prompt(QUESTION)


def test_the_names_that_are_advertised_are_the_packages(bytes_dir: Path) -> None:
    assert {"auto", "default", "qwen3", "llama-3"} <= {*known_renderers()}
    with pytest.raises(RenderError) as caught:
        load_renderer(bytes_dir, "unheard-of")
    assert all(repr(name) in str(caught.value) for name in known_renderers())


@pytest.mark.parametrize(
    ("renderer", "problem"),
    [
        ("qwen", "No renderer config registered for name='qwen'"),
        ("no.such.module:Class", "No module named 'no'"),
        ("moonmill.agents.compact:Missing", "has no attribute 'Missing'"),
        ("moonmill.types:Message", "must set config_class"),
        ("moonmill.agents.compact:CompactRenderer", "the tokenizer has no token for <system>"),
        ("llama-3", "cannot be used with the model"),
    ],
)
def test_a_renderer_that_cannot_be_used_is_an_error(bytes_dir: Path, renderer: str, problem: str) -> None:
    with pytest.raises(RenderError, match=problem) as caught:
        load_renderer(bytes_dir, renderer)
    assert repr(renderer) in str(caught.value)


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="has no tokenizer"):
        load_renderer(tmp_path)


def test_a_damaged_tokenizer_is_an_error(compact_dir: Path, tmp_path: Path) -> None:
    save_compact(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RenderError, match="no tokenizer can be loaded"):
        load_renderer(tmp_path)


@pytest.mark.parametrize(
    ("renderer", "tool_format", "problem"),
    [
        ("default", "hermess", r"model.tool_format: 'hermess' is unknown; did you mean 'hermes'\?"),
        ("default", "xml", r"model.tool_format: 'xml' is unknown: known are hermes, qwen3, qwen3.5, glm, deepseek-v3"),
        ("qwen3", "hermes", "the renderer 'qwen3' has a format for calls of its own: leave model.tool_format out"),
        ("default", "qwen3", "does not write tools and calls, which the tool format 'qwen3' needs; .*: hermes"),
    ],
)
def test_a_tool_format_that_cannot_be_used_is_an_error(
    bytes_dir: Path, renderer: str, tool_format: str, problem: str
) -> None:
    with pytest.raises(RenderError, match=problem):
        load_renderer(bytes_dir, renderer, tool_format)


def test_a_model_folder_may_name_the_tool_format(tmp_path: Path) -> None:
    save_bytes(tmp_path)
    (tmp_path / MODEL_FILE).write_text('{"renderer": "default", "tool_format": "hermes"}')
    assert load_renderer(tmp_path).capabilities.tools
    assert not load_renderer(tmp_path, "default").capabilities.tools


def test_the_vocabulary_that_gpt_oss_lacks_without_a_network_is_told(
    bytes_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    with pytest.raises(RenderError, match=r"o200k_base\.tiktoken.*name that folder in TIKTOKEN_ENCODINGS_BASE"):
        load_renderer(bytes_dir, "gpt-oss")


def test_a_model_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = save_compact(tmp_path) / MODEL_FILE
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert load_renderer(tmp_path).name == "moonmill.agents.compact:CompactRenderer"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"renderer": 3}', '{"renderer": "qwen3", "more": 1}'])
def test_a_damaged_model_file_is_an_error(tmp_path: Path, text: str) -> None:
    save_compact(tmp_path)
    (tmp_path / MODEL_FILE).write_text(text)
    with pytest.raises(RenderError, match=r'moonmill.json should read {"renderer"'):
        load_renderer(tmp_path)


# Extending


def test_a_turn_is_extended_as_it_would_have_been_rendered(renderer: TurnRenderer) -> None:
    prompt, completion = renderer.prompt(QUESTION, TOOLS), said(renderer, CALL)
    added = renderer.extend(prompt, completion, RESULT, TOOLS)
    assert added is not None
    # Qwen's template drops an empty thought from turns in the past; here none was sampled, so none is missing.
    whole = renderer.decode(renderer.prompt([*QUESTION, CALL, *RESULT], TOOLS)).replace("<think>\n\n</think>\n\n", "")
    assert renderer.decode([*prompt, *completion, *added]).replace("<think>\n\n</think>\n\n", "") == whole


def test_a_turn_cut_by_its_length_is_closed_first(compact: TurnRenderer, qwen: TurnRenderer) -> None:
    for renderer, end in ((compact, "<end>"), (qwen, "<|im_end|>")):
        added = renderer.extend(renderer.prompt(QUESTION), ids_of(renderer, "it is fort"), (Message("user", "Go on"),))
        assert added is not None
        assert renderer.decode(added).startswith(end)


def test_a_new_question_does_not_drop_an_earlier_thought(qwen: TurnRenderer) -> None:
    prompt, completion = qwen.prompt(QUESTION), ids_of(qwen, "<think>\n12+34\n</think>\n\n46<|im_end|>")
    assert qwen.extend(prompt, completion, (Message("user", "and 1+1?"),)) is not None


@settings(max_examples=300)
@given(data=st.data())
def test_whatever_was_sampled_is_kept_verbatim_or_not_extended(
    compact: TurnRenderer, qwen: TurnRenderer, data: st.DataObject
) -> None:
    renderer = data.draw(st.sampled_from([compact, qwen]))
    vocabulary = len(renderer._tokenizer)
    completion = data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=12))
    prompt = renderer.prompt(QUESTION, TOOLS)
    added = renderer.extend(prompt, completion, RESULT, TOOLS)
    renderer.parse(completion, prompt, TOOLS)
    stops = [i for i, token in enumerate(completion) if token in renderer.stop_token_ids]
    if not stops or stops == [len(completion) - 1]:
        opening = "<assistant>" if renderer is compact else "<|im_start|>assistant\n"
        assert added is not None
        assert renderer.decode(added).endswith(opening)


def test_tokens_behind_the_end_of_a_turn_are_not_dropped_in_silence(compact: TurnRenderer) -> None:
    assert compact.extend(compact.prompt(QUESTION), ids_of(compact, "1<end>2"), RESULT) is None


def test_an_ordinary_template_is_extended_by_what_it_writes_between_turns(bytes_dir: Path) -> None:
    renderer = load_renderer(bytes_dir)
    added = renderer.extend(renderer.prompt(QUESTION), ids_of(renderer, "46<|im_end|>"), QUESTION)
    assert added is not None
    assert renderer.decode(added) == "\n<|im_start|>user\nwhat is 12+34?<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_does_not_end_turns_cannot_be_extended(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    renderer = load_renderer(save_bytes(tmp_path, template))
    assert not renderer.capabilities.turns
    assert renderer.extend(renderer.prompt(QUESTION), ids_of(renderer, "46<|im_end|>"), QUESTION) is None


# Parsing


def test_what_is_rendered_is_parsed_back(renderer: TurnRenderer) -> None:
    prompt = renderer.prompt(QUESTION, TOOLS)
    message = renderer.parse(said(renderer, CALL), prompt, TOOLS)
    [call] = message.tool_calls
    assert (message.role, message.content) == ("assistant", "")
    assert (call.name, call.arguments, call.error) == ("calculate", {"expression": "12+34"}, None)
    assert renderer.parse(said(renderer, Message("assistant", "46")), prompt, TOOLS).content == "46"


def test_ids_of_calls_differ_within_a_conversation_and_are_the_same_every_time(renderer: TurnRenderer) -> None:
    twice = Message("assistant", tool_calls=CALL.tool_calls * 2)
    prompt, completion = renderer.prompt(QUESTION, TOOLS), said(renderer, twice)
    longer = [*prompt, *completion, *(renderer.extend(prompt, completion, RESULT, TOOLS) or ())]
    first, second = (renderer.parse(completion, context, TOOLS).tool_calls for context in (prompt, longer))
    assert len({call.id for call in (*first, *second)}) == 4
    assert renderer.parse(completion, prompt, TOOLS).tool_calls == first


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('<tool_call>\n{"name": "calculate", "arguments"\n</tool_call>', "the arguments are not valid JSON"),
        ('<tool_call>\n{"name": "calculate"', "the call is not closed"),
        ('<tool_call>\n{"arguments": {}}\n</tool_call>', "the call names no tool"),
        ("<tool_call>\n[1]\n</tool_call>", "the call names no tool"),
    ],
)
def test_a_malformed_call_carries_its_error(qwen: TurnRenderer, text: str, error: str) -> None:
    [call] = qwen.parse(ids_of(qwen, text + "<|im_end|>"), qwen.prompt(QUESTION, TOOLS), TOOLS).tool_calls
    assert call.error == error
    assert isinstance(call.arguments, str)


def test_a_malformed_call_does_not_lose_its_neighbour(qwen: TurnRenderer) -> None:
    good = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+2"}}\n</tool_call>'
    calls = qwen.parse(ids_of(qwen, f"<tool_call>x</tool_call>{good}<|im_end|>"), (), TOOLS).tool_calls
    assert [call.error is None for call in calls] == [False, True]


@pytest.mark.parametrize(("arguments", "kept"), [("[1, 2]", "[1, 2]"), ("7", "7"), ('"a"', "a"), ("null", {})])
def test_arguments_that_are_no_object_are_left_to_the_environment(
    qwen: TurnRenderer, arguments: str, kept: object
) -> None:
    text = f'<tool_call>\n{{"name": "calculate", "arguments": {arguments}}}\n</tool_call><|im_end|>'
    [call] = qwen.parse(ids_of(qwen, text), (), TOOLS).tool_calls
    assert (call.arguments, call.error) == (kept, None)


@pytest.mark.parametrize(
    "body", ["[" * 20_000, '{"name": "calculate", "arguments": ' + "9" * 5000 + "}", '{"name": 5}']
)
def test_nothing_a_policy_writes_raises(qwen: TurnRenderer, body: str) -> None:
    [call] = qwen.parse(ids_of(qwen, f"<tool_call>{body}</tool_call><|im_end|>"), (), TOOLS).tool_calls
    assert call.error or call.name == ""


def test_a_thought_is_told_from_the_answer(qwen: TurnRenderer) -> None:
    message = qwen.parse(ids_of(qwen, "<think>\n12+34\n</think>\n\n46<|im_end|>"), qwen.prompt(QUESTION))
    assert (message.reasoning, message.content) == ("12+34", "46")


# Rendering


def test_tools_that_the_template_does_not_tell_stand_behind_the_system_prompt(bytes_dir: Path) -> None:
    renderer = load_renderer(bytes_dir, tool_format="hermes")
    text = renderer.decode(renderer.prompt([Message("system", "Be brief."), *QUESTION], TOOLS))
    assert text == (
        "<|im_start|>system\nBe brief.\n\nYou can call these tools:\n"
        '{"name":"calculate","description":"Work it out.","parameters":{"type":"object","properties":'
        '{"expression":{"type":"string"}},"required":["expression"]}}\n'
        'To call one, write:\n<tool_call>\n{"name": "name", "arguments": {"argument": "value"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\nwhat is 12+34?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>[{"name": "a", "arguments": {"x": 1}}, {"name": "b"}]</tool_call>', [("a", {"x": 1}), ("b", {})]),
        ('<tool_call>{"name": "a", "parameters": {"x": 1}}</tool_call> and so on', [("a", {"x": 1})]),
        ('<tool_call>{"name": "a"}<tool_call>{"name": "b"}</tool_call>', [("", None), ("b", {})]),
        ("<tool_call>[]</tool_call>", [("", None)]),
        ('<tool_call>{"name": ["a"]}</tool_call>', [("", None)]),
    ],
)
def test_calls_are_read_from_text_however_a_small_model_writes_them(
    tmp_path: Path, text: str, calls: list[tuple[str, object]]
) -> None:
    renderer = load_renderer(save_bytes(tmp_path), tool_format="hermes")
    message = renderer.parse(ids_of(renderer, f"Let me see. {text}<|im_end|>"), renderer.prompt(QUESTION), TOOLS)
    assert message.content == "Let me see."
    assert [(c.name, c.arguments if c.error is None else None) for c in message.tool_calls] == calls


def test_tools_without_a_way_to_call_them_are_refused(bytes_dir: Path) -> None:
    with pytest.raises(
        RenderError, match=r"the 'default' renderer cannot read tool calls.*calculate.*qwen3.*model.tool_format.*hermes"
    ):
        load_renderer(bytes_dir).prompt(QUESTION, TOOLS)


def test_messages_that_cannot_be_rendered_are_an_error(qwen: TurnRenderer) -> None:
    with pytest.raises(RenderError, match="roles: none"):
        qwen.prompt([])


def test_a_transcript_tells_what_the_assistant_says(renderer: TurnRenderer, bytes_dir: Path) -> None:
    ids, flags = renderer.transcript([*QUESTION, CALL, *RESULT, Message("assistant", "46")], TOOLS)
    assert len(ids) == len(flags)
    spoken = renderer.decode([i for i, flag in zip(ids, flags, strict=True) if flag])
    assert "12+34" in spoken
    assert "what is" not in spoken
    with pytest.raises(RenderError, match="does not tell which tokens"):
        load_renderer(bytes_dir).transcript(QUESTION)


def test_loading_a_folders_renderer_imports_neither_torch_nor_every_model(compact_dir: Path) -> None:
    code = (
        "import sys; from moonmill.agents.rendering import load_renderer\n"
        f"load_renderer({str(compact_dir)!r}).prompt([])\n"
        "assert not {'torch', 'transformers.models.llama.modeling_llama'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
