"""Reading an engine's answers: server-sent events and errors, as structs."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import Struct

_DONE = b"[DONE]"


class TokenLogprobs(Struct):
    """The part of a choice's log-probabilities that is read."""

    token_logprobs: list[float]


class Choice(Struct):
    """What is new of a completion."""

    token_ids: list[int] | None = None
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None


class _Error(Struct):
    message: str = ""


class Chunk(Struct):
    """One event of a stream."""

    choices: list[Choice] = []
    error: _Error | None = None


class EngineRefusal(Exception):
    """An answer that is an error. Not for users: the client decides whether to try again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.message = message


_chunks = msgspec.json.Decoder(Chunk)


async def read_events(body: AsyncIterator[bytes]) -> AsyncIterator[Chunk]:
    """The chunks of a stream, up to its end.

    Raises:
        EngineRefusal: an event is an error, or no event at all.
    """
    rest = b""
    async for data in body:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == _DONE:
                continue
            try:
                chunk = _chunks.decode(payload)
            except msgspec.MsgspecError as e:
                raise EngineRefusal(500, f"an event that is no completion: {payload[:200]!r} ({e})") from e
            if chunk.error is not None:
                raise EngineRefusal(500, chunk.error.message)
            yield chunk


def error_of(status: int, body: bytes) -> EngineRefusal:
    """The refusal an answer's body tells of."""
    try:
        told: Any = msgspec.json.decode(body)
        message = str(told["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = body.decode(errors="replace").strip()[:500]
    return EngineRefusal(status, message or f"status {status}")
