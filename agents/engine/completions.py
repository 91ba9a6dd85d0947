"""`POST /v1/completions`: tokens or text in, tokens, log-probabilities and text out, whole or streamed."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from moonmill.agents.engine.protocol import (
    ApiError,
    CompletionAnswer,
    CompletionChoice,
    CompletionRequest,
    Logprobs,
    Usage,
    decode_body,
)
from moonmill.agents.engine.responses import Event, WhileConnected, streamed, whole
from moonmill.agents.engine.service import Piece, Service

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's and vLLM's."""


def complete(service: Service, body: bytes) -> WhileConnected:
    """Answer one request.

    Raises:
        ApiError: the request cannot be served.
    """
    request = decode_body(body, CompletionRequest)
    service.require(request.model)
    completion = _Completion(service, request)
    return streamed(completion.events) if request.stream else whole(completion.answer)


class _Completion:
    def __init__(self, service: Service, request: CompletionRequest) -> None:
        self._service = service
        self._request = request
        self._prompt: list[int] = []
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._offset = 0

    async def answer(self) -> bytes:
        """The whole answer."""
        parts: list[Piece] = []
        async with aclosing(self._pieces()) as pieces:
            parts.extend([piece async for piece in pieces])
        joined = Piece(
            [t for p in parts for t in p.tokens],
            [v for p in parts for v in p.logprobs],
            [v for p in parts for v in p.top],
            "".join(p.text for p in parts),
            parts[-1].finish,
            parts[-1].stop_reason,
        )
        choice = self._choice(joined)
        if self._request.return_token_ids:
            choice.prompt_token_ids = self._prompt
        answer = CompletionAnswer(
            self._id, self._created, self._request.model, [choice], self._usage(len(joined.tokens))
        )
        answer.prompt_token_ids = choice.prompt_token_ids
        return msgspec.json.encode(answer)

    async def events(self) -> AsyncGenerator[Event]:
        """The events of a stream."""
        sampled = 0
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                choice = self._choice(piece)
                if sampled == 0 and self._request.return_token_ids:
                    choice.prompt_token_ids = self._prompt
                sampled += len(piece.tokens)
                body = CompletionAnswer(self._id, self._created, self._request.model, [choice])
                yield Event(msgspec.json.encode(body), piece.finish is not None and not self._request.with_usage)
        if self._request.with_usage:
            usage = self._usage(sampled)
            body = CompletionAnswer(self._id, self._created, self._request.model, [], usage)
            yield Event(msgspec.json.encode(body), last=True)

    async def _pieces(self) -> AsyncGenerator[Piece]:
        request, service = self._request, self._service
        self._prompt = await _prompt_ids(service, request.prompt)
        max_tokens = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        params = service.params(request, self._prompt, max_tokens, top_logprobs=request.logprobs or 0)
        async with aclosing(service.pieces(request, self._prompt, params)) as pieces:
            async for piece in pieces:
                yield piece

    def _choice(self, piece: Piece) -> CompletionChoice:
        return CompletionChoice(
            index=0,
            text=piece.text,
            logprobs=self._logprobs(piece) if self._request.logprobs is not None else None,
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
            token_ids=piece.tokens if self._request.return_token_ids else None,
        )

    def _logprobs(self, piece: Piece) -> Logprobs:
        names = [self._name(token) for token in piece.tokens]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        top = [{self._name(t): v for t, v in row} for row in piece.top]
        for row, name, value in zip(top, names, piece.logprobs, strict=False):
            row[name] = value
        if not top:
            top = [{name: value} for name, value in zip(names, piece.logprobs, strict=True)]
        return Logprobs(names, piece.logprobs, top, offsets)

    def _name(self, token: int) -> str:
        text = self._service.text
        as_id = text is None or self._request.return_tokens_as_token_ids
        return f"token_id:{token}" if as_id or text is None else text.token(token)

    def _usage(self, sampled: int) -> Usage:
        return Usage(len(self._prompt), sampled, len(self._prompt) + sampled)


async def _prompt_ids(service: Service, prompt: str | list[int | str | list[int]]) -> list[int]:
    """One prompt's tokens; a list of one prompt is that prompt."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ApiError(f"one prompt a request; there are {len(prompt)}: send a request for each", param="prompt")
        first = prompt[0]
        return await _prompt_ids(service, first if isinstance(first, str) else [*first])
    if isinstance(prompt, str):
        text = service.text
        if text is None:
            raise ApiError(
                "a prompt of text needs a tokenizer, and the model folder has none: send token ids", param="prompt"
            )
        return await service.tokenize(lambda: text.encode(prompt), len(prompt))
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) != len(prompt):
        raise ApiError("a prompt is a text or a list of token ids, not a mixture", param="prompt")
    return ids
