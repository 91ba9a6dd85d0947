"""What the recording proxy answers, in the shapes of OpenAI's API and of vLLM's `/inference/v1/generate`.

How tokens are drawn is the run's: a request's temperature, top-p, top-k and seed are passed over, since a policy is
trained on what it was sampled with. `max_tokens` and `stop` are honoured. An answer is sampled whole, so a stream has
one piece of it.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from moonmill.agents.engine.chat_shapes import given_messages, offered_tools, told_call
from moonmill.agents.engine.protocol import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    Positive,
    Usage,
    decode_body,
)
from moonmill.agents.engine.responses import Event, streamed, whole
from moonmill.agents.players import Said, Wanted
from moonmill.types import Completion

if TYPE_CHECKING:
    from moonmill.agents.desk import Desk

Ask = Callable[[], Awaitable[Said]]


class GenerateSampling(Struct, frozen=True):
    """What of vLLM's sampling parameters is honoured."""

    max_tokens: Positive | None = None


class GenerateRequest(Struct, frozen=True):
    """Body of `/inference/v1/generate`."""

    token_ids: list[int]
    sampling_params: GenerateSampling = GenerateSampling()


def chat(desk: "Desk", body: bytes, recorded: bool) -> Response:
    """Answer `/v1/chat/completions`.

    Raises:
        ApiError: the request cannot be served.
    """
    request = decode_body(body, ChatRequest)
    if request.logprobs:
        raise ApiError("log-probabilities are recorded, and not told: leave logprobs out", param="logprobs")
    messages, tools = given_messages(request), offered_tools(request)
    wanted = Wanted(request.max_completion_tokens or request.max_tokens, request.stops)

    def ask() -> Awaitable[Said]:
        return desk.ask(lambda player, number: player.chat(number, messages, tools, wanted), recorded)

    shape = _Shape("chat.completion", request.model)
    if not request.stream:
        return whole(lambda: _chat_answer(shape, ask))
    return streamed(lambda: _chat_events(shape, ask, request.with_usage))


def complete(desk: "Desk", body: bytes, recorded: bool) -> Response:
    """Answer `/v1/completions`.

    Raises:
        ApiError: the request cannot be served.
    """
    request = decode_body(body, CompletionRequest)
    prompt = request.prompt if isinstance(request.prompt, str) else _token_ids(request.prompt)
    if request.stream:
        raise ApiError("completions are not streamed here: leave stream out", param="stream")
    if request.logprobs is not None:
        raise ApiError("log-probabilities are recorded, and not told: leave logprobs out", param="logprobs")
    wanted = Wanted(request.max_tokens, request.stops)
    shape = _Shape("text_completion", request.model)

    async def answer() -> bytes:
        said = await desk.ask(lambda player, number: player.complete(number, prompt, wanted), recorded)
        choice: dict[str, Any] = {"index": 0, "text": said.message.content, "logprobs": None}
        choice |= {"finish_reason": said.finish_reason, "stop_reason": said.stop}
        if request.return_token_ids and said.completion is not None:
            choice["token_ids"] = said.completion.tokens
        return shape.body([choice], said)

    return whole(answer)


def generate(desk: "Desk", body: bytes, recorded: bool) -> Response:
    """Answer `/inference/v1/generate`: token ids in, token ids and log-probabilities out.

    Raises:
        ApiError: the request cannot be served.
    """
    request = decode_body(body, GenerateRequest)
    wanted = Wanted(request.sampling_params.max_tokens)

    async def answer() -> bytes:
        said = await desk.ask(lambda player, number: player.complete(number, request.token_ids, wanted), recorded)
        done = said.completion or Completion((), (), (), said.finish_reason)
        content = [
            {"token": f"token_id:{token}", "logprob": logprob}
            for token, logprob in zip(done.tokens, done.logprobs, strict=True)
        ]
        choice = {
            "index": 0,
            "token_ids": done.tokens,
            "logprobs": {"content": content},
            "finish_reason": said.finish_reason,
        }
        return msgspec.json.encode({"request_id": f"generate-{uuid.uuid4().hex}", "choices": [choice]})

    return whole(answer)


class _Shape:
    """The frame of an answer."""

    def __init__(self, kind: str, model: str) -> None:
        prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
        self._frame = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._kind = kind

    def body(self, choices: list[dict[str, Any]], said: Said | None, suffix: str = "") -> bytes:
        usage = None
        if said is not None:
            sampled = len(said.completion.tokens) if said.completion is not None else 0
            usage = Usage(said.prompt_tokens, sampled, said.prompt_tokens + sampled)
        return msgspec.json.encode({**self._frame, "object": self._kind + suffix, "choices": choices, "usage": usage})


async def _chat_answer(shape: _Shape, ask: Ask) -> bytes:
    said = await ask()
    choice = {"index": 0, "message": _message(said), "logprobs": None, "finish_reason": _finish(said)}
    return shape.body([{**choice, "stop_reason": said.stop}], said)


async def _chat_events(shape: _Shape, ask: Ask, with_usage: bool) -> AsyncGenerator[Event]:
    said = await ask()
    delta = _message(said)
    for index, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = index
    for last, part in ((False, delta), (True, {})):
        choice = {"index": 0, "delta": part, "logprobs": None, "finish_reason": _finish(said) if last else None}
        yield Event(shape.body([choice], None, ".chunk"), last and not with_usage)
    if with_usage:
        yield Event(shape.body([], said, ".chunk"), last=True)


def _message(said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.message.content}
    if said.message.reasoning is not None:
        message["reasoning_content"] = said.message.reasoning
    if said.message.tool_calls:
        message |= {
            "content": said.message.content or None,
            "tool_calls": [told_call(c) for c in said.message.tool_calls],
        }
    return message


def _finish(said: Said) -> str:
    return "tool_calls" if said.finish_reason == "stop" and said.message.tool_calls else said.finish_reason


def _token_ids(prompt: list[int | str | list[int]]) -> list[int]:
    first = prompt[0] if len(prompt) == 1 else None
    ids = first if isinstance(first, list) else prompt
    if not all(isinstance(token, int) for token in ids):
        raise ApiError("a prompt is one text or one list of token ids", param="prompt")
    return [token for token in ids if isinstance(token, int)]
