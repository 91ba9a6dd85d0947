"""A chat format for tiny policies: one token for each tag, the shortest text between them.

    <user>(12+34)*5<assistant><call>12+34</call><end><tool>46<assistant><call>46*5</call><end>
    <tool>230<assistant>230<end>

`CompactRenderer` is a renderer of the `renderers` package; a model folder names it in its `moonmill.json`. It works
with any tokenizer that has the tags of `TAGS` as single tokens. What always holds:

- Every message is rendered by itself, so a longer conversation begins with the tokens of the shorter one.
- Text cannot forge a tag: a `<call>` inside a message is rendered as its characters.
- Tools' schemas and `reasoning` are not rendered. A tiny policy knows its tools from training, and the tokens they
  would cost are most of its context.

The body of a call is the tool's name and its arguments as JSON, `search{"query":"moon"}`. Where the tools are a single
one that takes a single required string and nothing else, it is that string alone: `12+34`.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal

from renderers import (
    BaseRendererConfig,
    ParsedResponse,
    ParsedToolCall,
    RenderedTokens,
    ToolCallParseStatus,
    extract_message_tool_names,
    reject_assistant_in_extension,
    trim_to_turn_close,
)

SYSTEM, USER, TOOL, ASSISTANT = "<system>", "<user>", "<tool>", "<assistant>"
CALL, CALL_END, END = "<call>", "</call>", "<end>"
TAGS = (SYSTEM, USER, TOOL, ASSISTANT, CALL, CALL_END, END)
"""The tokens a tokenizer needs. `END` closes the assistant's turn and is the only stop token."""


class CompactRendererConfig(BaseRendererConfig):  # type: ignore[misc]  # the package has no types mypy may follow
    """There is nothing to configure; the package wants a config class of its own for every renderer."""

    name: Literal["compact"] = "compact"


class CompactRenderer:
    """Messages to tokens and back in the compact format; see the module's docstring.

    Args:
        tokenizer: a fast transformers tokenizer whose vocabulary holds every tag of `TAGS`.
        config: has no fields of its own.

    Raises:
        ValueError: the tokenizer lacks a tag.
    """

    config_class = CompactRendererConfig
    is_prefix_stable = True

    def __init__(self, tokenizer: Any, config: CompactRendererConfig | None = None) -> None:
        self.config = config or CompactRendererConfig()
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        missing = [tag for tag in TAGS if tag not in vocabulary]
        if missing:
            raise ValueError(
                f"the tokenizer has no token for {', '.join(missing)}: the compact format needs {', '.join(TAGS)}, "
                "added as special tokens"
            )
        self._tag: dict[str, int] = {tag: vocabulary[tag] for tag in TAGS}
        self._end = self._tag[END]

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """The whole conversation, with the message, the sampled mask and the content mask of every token."""
        out = _Emitter(messages)
        for index, message in enumerate(messages):
            self._message(out, index, message, tools)
        if add_generation_prompt:
            out.add([self._tag[ASSISTANT]], -1)
        return out.rendered

    def render_ids(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        ids: list[int] = self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt).token_ids
        return ids

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> RenderedTokens | None:
        """The tokens so far with `new_messages` and the opening of the next turn appended.

        A completion that was cut before its `<end>` is closed with one. None where a new message is the assistant's:
        what was sampled is never rendered.
        """
        if not previous_prompt_ids or not new_messages or reject_assistant_in_extension(new_messages):
            return None
        previous = trim_to_turn_close(
            previous_prompt_ids, previous_completion_ids, {self._end}, synthesize_close=self._end
        )
        out = _Emitter(new_messages)
        out.add(previous, -1)
        for index, message in enumerate(new_messages):
            self._message(out, index, message, tools)
        out.add([self._tag[ASSISTANT]], -1)
        return out.rendered

    def parse_response(
        self,
        token_ids: Sequence[int],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> ParsedResponse:
        """Content and call attempts of one completion.

        Content is the text outside of calls. A call that ends before its `</call>`, or in which another one begins,
        is an `UNCLOSED_BLOCK`.
        """
        ids = list(token_ids)
        if self._end in ids:
            ids = ids[: ids.index(self._end)]
        content: list[int] = []
        calls: list[ParsedToolCall] = []
        start = 0
        while start < len(ids):
            if ids[start] != self._tag[CALL]:
                content.append(ids[start])
                start += 1
                continue
            stop = next((i for i in range(start + 1, len(ids)) if ids[i] in self._call_bounds), len(ids))
            closed = stop < len(ids) and ids[stop] == self._tag[CALL_END]
            raw = self._decode(ids[start + 1 : stop])
            span = (start, stop + 1 if closed else stop)
            if closed:
                calls.append(_parse_call(raw, span, bare_argument(tools)))
            else:
                calls.append(ParsedToolCall(raw=raw, token_span=span, status=ToolCallParseStatus.UNCLOSED_BLOCK))
            start = span[1]
        return ParsedResponse(content=self._decode(content), tool_calls=calls)

    def get_stop_token_ids(self) -> list[int]:
        return [self._end]

    @property
    def _call_bounds(self) -> tuple[int, int]:
        return self._tag[CALL], self._tag[CALL_END]

    def _message(
        self, out: "_Emitter", index: int, message: dict[str, Any], tools: Sequence[dict[str, Any]] | None
    ) -> None:
        role = message["role"]
        text = self._encode(_text(message.get("content") or ""))
        if role != "assistant":
            out.add([self._tag[f"<{role}>"]], index)
            out.add(text, index, content=True)
            return
        out.add([self._tag[ASSISTANT]], index)
        sampled = text
        bare = bare_argument(tools)
        for call in message.get("tool_calls") or ():
            body = self._encode(_call_body(call["function"], bare))
            sampled = [*sampled, self._tag[CALL], *body, self._tag[CALL_END]]
        out.add([*sampled, self._end], index, content=True, sampled=True)

    def _encode(self, text: str) -> list[int]:
        # split_special_tokens: text that looks like a tag stays text.
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


class _Emitter:
    """Builds a `RenderedTokens`: every token with its message, and whether it is sampled and whether content."""

    def __init__(self, messages: Sequence[dict[str, Any]]) -> None:
        self.rendered = RenderedTokens(
            message_roles=[m["role"] for m in messages],
            message_tool_names=extract_message_tool_names(list(messages)),
        )

    def add(self, ids: list[int], index: int, *, content: bool = False, sampled: bool = False) -> None:
        self.rendered.token_ids += ids
        self.rendered.message_indices += [index] * len(ids)
        self.rendered.is_content += [content] * len(ids)
        self.rendered.sampled_mask += [sampled] * len(ids)


def _text(content: str | list[dict[str, Any]]) -> str:
    """The text of a message's content, which chat APIs also write as a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def bare_argument(tools: Sequence[dict[str, Any]] | None) -> tuple[str, str] | None:
    """Tool and argument name where a call can be the bare argument: one tool, which takes one required string."""
    if not tools or len(tools) != 1:
        return None
    tool = tools[0].get("function", tools[0])
    parameters = tool.get("parameters", {})
    properties = parameters.get("properties", {})
    if len(properties) != 1:
        return None
    [(argument, schema)] = properties.items()
    if schema.get("type") != "string" or parameters.get("required") != [argument]:
        return None
    return tool["name"], argument


def _call_body(function: dict[str, Any], bare: tuple[str, str] | None) -> str:
    name: str = function["name"]
    arguments: Any = function["arguments"]
    if isinstance(arguments, str):
        text = arguments
        try:
            arguments = json.loads(text)
        except ValueError:
            # A call that was malformed when it was made stays the text it was.
            return text if bare else name + text
    if bare and name == bare[0] and isinstance(arguments, dict) and arguments.keys() == {bare[1]}:
        value = arguments[bare[1]]
        if isinstance(value, str):
            return value
    return name + json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _parse_call(raw: str, span: tuple[int, int], bare: tuple[str, str] | None) -> ParsedToolCall:
    if bare:
        return ParsedToolCall(raw=raw, name=bare[0], arguments={bare[1]: raw}, token_span=span)
    name, brace, rest = raw.partition("{")
    name = name.strip()
    if not name:
        return ParsedToolCall(raw=raw, token_span=span, status=ToolCallParseStatus.MISSING_NAME)
    try:
        arguments = json.loads(brace + rest) if brace else {}
    except ValueError:
        return ParsedToolCall(raw=raw, name=name, token_span=span, status=ToolCallParseStatus.INVALID_JSON)
    return ParsedToolCall(raw=raw, name=name, arguments=arguments, token_span=span)
