"""`POST /v1/chat/completions`: messages and tools in, a message or tool calls out, whole or streamed.

Messages become tokens, and tokens a message, through the model's renderer, the one that training uses. A stream tells
the text as far as it is certain not to be part of a call or of a stop string: where either may come, that is at the
end. As with vLLM, a message is told as the text it is where one of its calls is none that a client could make: of a
tool that was not offered, or with arguments that are not a JSON object.
"""

import time
import uuid
from bisect import bisect_left
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from moonmill.agents.engine.chat_shapes import given_messages, offered_tools, told_arguments, told_call
from moonmill.agents.engine.protocol import ApiError, ChatRequest, Usage, decode_body
from moonmill.agents.engine.responses import Event, WhileConnected, streamed, whole
from moonmill.agents.engine.service import Piece, Service
from moonmill.envs import ToolSpec
from moonmill.errors import RenderError
from moonmill.types import Message

if TYPE_CHECKING:
    from moonmill.agents.rendering import TurnRenderer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def chat(service: Service, body: bytes) -> WhileConnected:
    """Answer one request.

    Raises:
        ApiError: the request cannot be served.
    """
    request = decode_body(body, ChatRequest)
    service.require(request.model)
    answer = _Chat(service, request, offered_tools(request), given_messages(request), len(body))
    return streamed(answer.events) if request.stream else whole(answer.answer)


class _Chat:
    def __init__(
        self, service: Service, request: ChatRequest, tools: tuple[ToolSpec, ...], messages: list[Message], size: int
    ) -> None:
        self._service = service
        self._request = request
        self._tools = tools
        self._offered = {tool.name for tool in tools}
        self._certain = not tools and not request.stops
        self._messages = messages
        self._size = size
        self._renderer: TurnRenderer
        self._call_at: int | None = None
        """The token a call begins at, where calls are told as text."""
        self._prompt: list[int] = []
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    async def answer(self) -> bytes:
        """The whole answer."""
        tokens: list[int] = []
        logprobs: list[dict[str, Any]] = []
        text = ""
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                tokens += piece.tokens
                logprobs += self._logprobs(piece)
                text += piece.text
        parsed = self._parsed(tokens, text, piece)
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content or None}
        if parsed.reasoning is not None:
            message["reasoning_content"] = parsed.reasoning
        if parsed.tool_calls:
            message["tool_calls"] = [told_call(c) for c in parsed.tool_calls]
        elif message["content"] is None:
            message["content"] = ""
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": {"content": logprobs} if self._request.logprobs else None,
            "finish_reason": _finish(piece, parsed),
            "stop_reason": piece.stop_reason,
        }
        body = self._body("chat.completion", [choice], self._usage(len(tokens)))
        if self._request.return_token_ids:
            choice["token_ids"] = tokens
            body["prompt_token_ids"] = self._prompt
        return msgspec.json.encode(body)

    async def events(self) -> AsyncGenerator[Event]:
        """The events of a stream."""
        tokens: list[int] = []
        text = told = reasoned = ""
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                if not tokens:
                    yield Event(msgspec.json.encode(self._opening()), last=False)
                tokens += piece.tokens
                text += piece.text
                last = piece.finish is not None
                delta: dict[str, Any] = {}
                parsed = self._parsed(tokens, text, piece) if last or self._certain else Message("assistant")
                content, reasoning = (
                    t if last else t.rstrip(_UNFINISHED) for t in (parsed.content, parsed.reasoning or "")
                )
                if content.startswith(told) and content != told:
                    delta["content"], told = content[len(told) :], content
                if reasoning.startswith(reasoned) and reasoning != reasoned:
                    delta["reasoning_content"], reasoned = reasoning[len(reasoned) :], reasoning
                if last and parsed.tool_calls:
                    delta["tool_calls"] = [{"index": i, **told_call(c)} for i, c in enumerate(parsed.tool_calls)]
                body = self._chunk(delta, piece, parsed)
                yield Event(msgspec.json.encode(body), last and not self._request.with_usage)
        if self._request.with_usage:
            body = self._body("chat.completion.chunk", [], self._usage(len(tokens)))
            yield Event(msgspec.json.encode(body), last=True)

    async def _pieces(self) -> AsyncGenerator[Piece]:
        request, service = self._request, self._service
        self._renderer = renderer = await service.renderer()
        try:
            self._prompt = await service.tokenize(lambda: renderer.prompt(self._messages, self._tools), self._size)
        except RenderError as e:
            raise ApiError(str(e), param="messages") from e
        top = (request.top_logprobs or 0) if request.logprobs else 0
        limit = request.max_completion_tokens or request.max_tokens
        params = service.params(request, self._prompt, limit, renderer.stop_token_ids, top)
        async with aclosing(service.pieces(request, self._prompt, params)) as pieces:
            async for piece in pieces:
                yield piece

    def _parsed(self, tokens: list[int], text: str, piece: Piece) -> Message:
        """The message so far. Where a stop string cut it, that is its text: the tokens say more."""
        if isinstance(piece.stop_reason, str):
            return Message("assistant", text)
        parsed = self._parse(tokens)
        if all(call.name in self._offered and told_arguments(call) for call in parsed.tool_calls):
            return parsed
        if self._call_at is None:
            ends = range(1, len(tokens) + 1)
            self._call_at = bisect_left(ends, True, key=lambda end: bool(self._parse(tokens[:end]).tool_calls))
        before, rest = self._parse(tokens[: self._call_at]), tokens[self._call_at :]
        skip = self._request.skip_special_tokens is not False
        calls = self._service.text.decode(rest, skip) if self._service.text else self._renderer.decode(rest)
        return Message("assistant", before.content + calls, reasoning=before.reasoning)

    def _parse(self, tokens: list[int]) -> Message:
        return self._renderer.parse(tokens, self._prompt, self._tools)

    def _opening(self) -> dict[str, Any]:
        opening = self._chunk({"role": "assistant", "content": ""})
        if self._request.return_token_ids:
            opening["prompt_token_ids"] = self._prompt
        return opening

    def _chunk(
        self, delta: dict[str, Any], piece: Piece | None = None, parsed: Message | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        if piece is not None and parsed is not None:
            choice["finish_reason"] = _finish(piece, parsed)
            choice["stop_reason"] = piece.stop_reason
            if self._request.logprobs:
                choice["logprobs"] = {"content": self._logprobs(piece)}
            if self._request.return_token_ids:
                choice["token_ids"] = piece.tokens
        return self._body("chat.completion.chunk", [choice])

    def _body(self, kind: str, choices: list[dict[str, Any]], usage: Usage | None = None) -> dict[str, Any]:
        body = {"id": self._id, "object": kind, "created": self._created, "model": self._request.model}
        return {**body, "choices": choices, "usage": usage}

    def _usage(self, sampled: int) -> Usage:
        return Usage(len(self._prompt), sampled, len(self._prompt) + sampled)

    def _logprobs(self, piece: Piece) -> list[dict[str, Any]]:
        rows = []
        for i, (token, logprob) in enumerate(zip(piece.tokens, piece.logprobs, strict=True)):
            top = [self._told(t, v) for t, v in piece.top[i]] if piece.top else []
            rows.append({**self._told(token, logprob), "top_logprobs": top})
        return rows

    def _told(self, token: int, logprob: float) -> dict[str, Any]:
        name = self._renderer.decode((token,))
        return {"token": name, "logprob": logprob, "bytes": list(name.encode())}


def _finish(piece: Piece, parsed: Message) -> str | None:
    return "tool_calls" if piece.finish == "stop" and parsed.tool_calls else piece.finish
