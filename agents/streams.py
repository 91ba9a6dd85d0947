"""Reading an engine's answers: server-sent events and errors, as structs."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

_DONE = b"[DONE]"
_LONGEST_LINE = 1 << 24
"""Bytes. An event of a completion has a few tokens."""


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
    code: Any = None

    @property
    def status(self) -> int:
        """What the answer's status would have been, had it not begun before."""
        return self.code if isinstance(self.code, int) and 400 <= self.code < 600 else 500


class Chunk(Struct):
    """One event of a stream."""

    choices: list[Choice] = []
    error: _Error | None = None


class RefusalError(Exception):
    """An answer that is an error. Not for users: the client decides whether to try again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.message = message


_chunk_decoder = msgspec.json.Decoder(Chunk)


class EventReader:
    """Takes a stream's bytes as they come and gives out its chunks."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The chunks that are complete with `data`.

        Raises:
            RefusalError: an event is an error, or not an event of a completion.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise RefusalError(500, f"a line of more than {_LONGEST_LINE} bytes, which is no event of a completion")
        for line in lines:
            payload = line.removeprefix(b"data:").strip()
            if payload == line.strip() or payload == _DONE:
                continue
            try:
                chunk = _chunk_decoder.decode(payload)
            except msgspec.MsgspecError as e:
                raise RefusalError(500, f"an event that is no completion: {payload[:200]!r} ({e})") from e
            if chunk.error is not None:
                raise RefusalError(chunk.error.status, chunk.error.message)
            yield chunk


def error_of(status: int, body: bytes) -> RefusalError:
    """The refusal an answer's body tells of."""
    try:
        told: Any = msgspec.json.decode(body)
        message = str(told["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = body.decode(errors="replace").strip()[:500]
        if message.startswith("<"):
            message = f"status {status} and a web page: this is no engine"
    return RefusalError(status, message or f"status {status}")
