"""A model's own chat template as its format, for models that no renderer of the `renderers` package is made for.

`TemplateRenderer` is the package's default renderer with what episodes with tools need beyond it. What always holds:

- A turn is extended by what the template writes between a turn and the next, found by rendering a small conversation
  with and without the new messages. Nothing that was sampled is rendered.
- With the tool format `hermes`, calls and results of a template that does not write them are written as text: a call as
  JSON between `<tool_call>` tags, results between `<tool_response>` tags in a message of the role `tool`, or `user`
  where the template takes no other. Calls are read from the text, whether or not the tags are tokens.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from renderers import (
    DefaultRenderer,
    DefaultRendererConfig,
    ParsedResponse,
    ParsedToolCall,
    RenderedTokens,
    ToolCallParseStatus,
    reject_assistant_in_extension,
    trim_to_turn_close,
)
from renderers.parsers import TOOL_PARSERS

HERMES = "hermes"
TOOL_FORMATS: tuple[str, ...] = (HERMES, *TOOL_PARSERS)
"""What `model.tool_format` takes: ours, and those that the package parses, which a template has to write itself."""

_NAME, _SAID = "probe_tool", "omega"
_PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "probe", "parameters": _PARAMETERS}}
_QUESTION = [{"role": "user", "content": "?"}]
_RESULT = {"role": "tool", "content": _SAID, "tool_call_id": "call00000", "name": _NAME}
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


class TemplateRenderer(DefaultRenderer):  # type: ignore[misc]  # the package has no types mypy may follow
    """Renders with the tokenizer's chat template.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        tool_format: one of `TOOL_FORMATS`; empty for a model that calls no tools.

    Raises:
        ValueError: the template does not write calls in the format asked for.
    """

    def __init__(self, tokenizer: Any, tool_format: str = "") -> None:
        ours = tool_format == HERMES
        super().__init__(tokenizer, DefaultRendererConfig(tool_parser=None if ours else tool_format or None))
        if ours:
            self._tool_parser = _HermesParser(tokenizer)
        self._as_text = False
        self._extends: dict[bool, bool] = {}
        """Whether turns can be extended, with results and without, as far as it was asked."""
        self._close = self._closing()
        writes_tools = bool(tool_format) and self._writes_tools()
        if tool_format and not ours and not writes_tools:
            raise ValueError(
                f"its chat template does not write tools and calls, which the tool format {tool_format!r} needs; with "
                f"model.tool_format: {HERMES} they are written for it"
            )
        if ours and not writes_tools:
            self._result_role = "tool" if self._writes_role("tool") else "user"
            self._as_text = True

    def get_stop_token_ids(self) -> list[int]:
        """The end of the sequence, and what the template ends a turn with."""
        ids: list[int] = super().get_stop_token_ids()
        return ids if self._close is None or self._close in ids else [self._close, *ids]

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[dict[str, Any]] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """As the default renderer, without the white space around reasoning, and around content beside a call."""
        parsed = super().parse_response(token_ids, tools=tools, prompt_ids=prompt_ids)
        if parsed.reasoning_content is not None:
            parsed.reasoning_content = parsed.reasoning_content.strip()
        if parsed.tool_calls or parsed.reasoning_content is not None:
            parsed.content = parsed.content.strip()
        return parsed

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
    ) -> RenderedTokens | None:
        """The tokens so far and what the template writes behind a turn; None where it cannot be told what that is."""
        if not new_messages or reject_assistant_in_extension(new_messages):
            return None
        with_results = any(message["role"] == "tool" for message in new_messages)
        if with_results not in self._extends:
            probe = [_RESULT if with_results else {"role": "user", "content": _SAID}]
            self._extends[with_results] = _SAID in self._decode(self._behind_turn(probe, tools))
        if not self._extends[with_results]:
            return None
        previous = trim_to_turn_close(
            previous_prompt_ids,
            previous_completion_ids,
            {*self.get_stop_token_ids()},
            synthesize_close=self._close,
        )
        return RenderedTokens(token_ids=[*previous, *self._behind_turn(new_messages, tools)])

    def _apply(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        if self._as_text:
            messages, tools = list(_as_text(messages, self._result_role)), None
        ids: list[int] = super()._apply(list(messages), tools=tools, add_generation_prompt=add_generation_prompt)
        return ids

    def _closing(self) -> int | None:
        """The token that the template ends a turn with; None where it has none."""
        first = next(iter(self._behind_content()), None)
        return first if first in {*self._tokenizer.all_special_ids, *self._tokenizer.added_tokens_decoder} else None

    def _behind_turn(self, new_messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
        """What the template writes behind the end of an assistant's turn for these messages, none where it fails."""
        same = self._behind_content(new_messages, tools)
        return same[same.index(self._close) + 1 :] if self._close in same else []

    def _behind_content(
        self, new_messages: Sequence[dict[str, Any]] = (), tools: list[dict[str, Any]] | None = None
    ) -> list[int]:
        """The end that two conversations have in common whose last turns differ in their last character."""
        try:
            one, other = (
                self._apply(
                    [*_turn(text, new_messages), *new_messages], tools=tools, add_generation_prompt=bool(new_messages)
                )
                for text in "12"
            )
        except Exception:  # a template raises what it likes about messages it does not take
            return []
        pairs = zip(reversed(one), reversed(other), strict=False)
        return one[len(one) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]

    def _writes_tools(self) -> bool:
        """Whether the template itself shows the tools, calls and results."""
        try:
            told, called = (self._apply(m, tools=[_TOOL]) for m in (_QUESTION, [*_turn("1", [_RESULT]), _RESULT]))
        except Exception:
            return False
        calls = self._tool_parser.extract(called)[1]
        read = any(call.name == _NAME and call.arguments == {"text": "1"} for call in calls)
        return read and _NAME in self._decode(told) and _SAID in self._decode(called)

    def _writes_role(self, role: str) -> bool:
        """Whether the template lets a role pass behind an assistant's turn."""
        try:
            return _SAID in self._decode(self._apply([*_turn("1", ()), {"role": role, "content": _SAID}]))
        except Exception:
            return False

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def _turn(text: str, new_messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A question and a turn that says `text` and that `new_messages` may follow: it has a call for each result."""
    calls = [
        {
            "id": message.get("tool_call_id") or "call00000",
            "type": "function",
            "function": {"name": message.get("name") or _NAME, "arguments": {"text": text}},
        }
        for message in new_messages
        if message["role"] == "tool"
    ]
    said: dict[str, Any] = {"content": "", "tool_calls": calls} if calls else {"content": text}
    return [*_QUESTION, {"role": "assistant", **said}]


def _as_text(messages: Sequence[Mapping[str, Any]], result_role: str) -> Iterator[dict[str, Any]]:
    """The messages with calls and results as text; the results of one turn are one message."""
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message.get('content') or ''}\n</tool_response>")
            continue
        if results:
            yield {"role": result_role, "content": "\n".join(results)}
            results = []
        blocks = [_block(call.get("function", call)) for call in message.get("tool_calls") or ()]
        said = [message.get("content") or "", *blocks] if blocks else [message.get("content") or ""]
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        yield {**kept, "content": "\n".join(part for part in said if part)}
    if results:
        yield {"role": result_role, "content": "\n".join(results)}


def _block(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


class _HermesParser:
    """Calls as JSON between `<tool_call>` tags, one object or a list of them, in the text of a completion."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def extract(self, token_ids: list[int]) -> tuple[list[int], list[ParsedToolCall]]:
        """The tokens before the first call, and the calls."""
        text = self._decode(token_ids)
        begin = text.find("<tool_call>")
        if begin < 0:
            return token_ids, []
        lengths = range(len(token_ids) + 1)
        before = bisect_left(lengths, begin + 1, key=lambda n: len(self._decode(token_ids[:n]))) - 1
        span = (before, len(token_ids))
        return token_ids[:before], [call for found in _CALL.finditer(text) for call in _calls(found, span)]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def _calls(found: re.Match[str], span: tuple[int, int]) -> Iterator[ParsedToolCall]:
    raw, end = found[1].strip(), found[2]
    if not end:
        yield ParsedToolCall(raw=raw, token_span=span, status=ToolCallParseStatus.UNCLOSED_BLOCK)
        return
    try:
        read = json.loads(raw)
    except ValueError:
        yield ParsedToolCall(raw=raw, token_span=span, status=ToolCallParseStatus.INVALID_JSON)
        return
    for call in read if isinstance(read, list) and read else [read]:
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or not name:
            yield ParsedToolCall(raw=raw, token_span=span, status=ToolCallParseStatus.MISSING_NAME)
            continue
        arguments = call.get("arguments", call.get("parameters", {}))
        yield ParsedToolCall(raw=raw, name=name, arguments=arguments, token_span=span)
