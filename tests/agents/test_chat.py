"""A model behind a chat API, against a real HTTP server."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moonmill.agents import chat
from moonmill.agents.agent import Turn
from moonmill.agents.chat import ChatAgent
from moonmill.envs import ToolSpec
from moonmill.errors import ConfigError, ContextFullError, EngineError, PromptTooLongError
from moonmill.types import Message, Sampling, ToolCall, Usage

GREEDY = Sampling(temperature=0)
PROMPT = (Message("user", "hello"),)
ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})


def said(content: str | None = "hi", finish: str = "stop", **message: Any) -> dict[str, Any]:
    """A chat API's answer."""
    return {"choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}]}


class Api:
    """Answers with what is in `answers`, in order; keeps what was asked."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any] | Response | float] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def complete(self, request: Request) -> Response:
        self.requests.append(json.loads(await request.body()))
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0)
        if isinstance(answer, float):
            await anyio.sleep(answer)
            answer = said("late")
        return answer if isinstance(answer, Response) else JSONResponse(answer)


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    api = Api()
    app = Starlette(routes=[Route("/v1/chat/completions", api.complete, methods=["POST"])])
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    api.url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/v1"
    yield api
    running.should_exit = True
    thread.join(10)


@pytest.fixture
def api(server: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(chat, "_FIRST_WAIT", 0.01)
    server.answers, server.requests, server.headers = [], [], []
    return server


def converse(
    api: Api, *turns: tuple[Message, ...], tools: tuple[ToolSpec, ...] = (), sampling: Sampling = GREEDY, **kw: Any
) -> list[Turn]:
    """The agent's answers to these messages, in one episode."""

    async def main() -> list[Turn]:
        async with ChatAgent(api.url, "m", sampling, **kw) as agent:
            session = agent.session(tools, 7)
            return [await session.act(new) for new in turns]

    return anyio.run(main)


def test_asks_with_the_model_the_sampling_and_the_seed(api: Api) -> None:
    api.answers = [said("hi")]
    [turn] = converse(api, PROMPT, sampling=Sampling(0.5, 0.9, 20, 64))
    assert turn.message == Message("assistant", "hi")
    assert turn.finish_reason == "stop"
    assert turn.segments == ()
    assert api.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 20,
            "max_tokens": 64,
            "seed": 7,
        }
    ]


def test_sends_the_key_as_a_bearer_token(api: Api) -> None:
    api.answers = [said()]
    converse(api, PROMPT, api_key="secret")
    assert api.headers[0]["authorization"] == "Bearer secret"


def test_tool_calls_and_their_results_travel_both_ways(api: Api) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    api.answers = [said(None, "tool_calls", tool_calls=[call]), said("it is 2")]
    result = Message("tool", "2", tool_call_id="c1", name="add")
    first, second = converse(api, PROMPT, (result,), tools=(ADD,))
    assert first.message.tool_calls == (ToolCall("c1", "add", {"a": 1}),)
    assert second.message.content == "it is 2"
    assert api.requests[0]["tools"] == [ADD.to_openai()]
    _, told, answered = api.requests[1]["messages"]
    assert told["tool_calls"] == [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}]
    assert answered == {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"}


@pytest.mark.parametrize(
    ("sent", "read"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (None, {}), ('{"a": ', '{"a": '), ("[1]", "[1]")],
)
def test_arguments_that_are_no_object_are_kept_as_text(api: Api, sent: Any, read: Any) -> None:
    api.answers = [said(None, "tool_calls", tool_calls=[{"id": "c", "function": {"name": "add", "arguments": sent}}])]
    [turn] = converse(api, PROMPT, tools=(ADD,))
    assert turn.message.tool_calls[0].arguments == read


def test_calls_without_an_id_get_one_that_is_unique_in_the_episode(api: Api) -> None:
    bare = {"function": {"name": "add", "arguments": "{}"}}
    api.answers = [said(None, "tool_calls", tool_calls=[bare, bare]), said(None, "tool_calls", tool_calls=[bare])]
    turns = converse(api, PROMPT, PROMPT, tools=(ADD,))
    ids = [call.id for turn in turns for call in turn.message.tool_calls]
    assert len(set(ids)) == 3


def test_a_cut_answer_says_so(api: Api) -> None:
    api.answers = [said("I was about to", "length")]
    [turn] = converse(api, PROMPT)
    assert turn.finish_reason == "length"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_beside_the_text(api: Api, field: str) -> None:
    api.answers = [said("4", **{field: "2+2"})]
    [turn] = converse(api, PROMPT)
    assert (turn.message.content, turn.message.reasoning) == ("4", "2+2")


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_busy_api_is_asked_again(api: Api, status: int) -> None:
    api.answers = [Response("busy", status), Response("busy", status), said("at last")]
    [turn] = converse(api, PROMPT)
    assert turn.message.content == "at last"
    assert len(api.requests) == 3


def test_waits_as_long_as_the_api_asks(api: Api) -> None:
    api.answers = [Response("slowly", 429, {"retry-after": "1"}), said()]
    start = time.monotonic()
    converse(api, PROMPT)
    assert time.monotonic() - start >= 1.0


def test_nobody_asks_while_an_api_with_too_many_requests_wants_to_be_left_alone(api: Api) -> None:
    api.answers = [Response("slowly", 429, {"retry-after": "1"}), said(), said()]

    async def main() -> float:
        async with ChatAgent(api.url, "m", GREEDY) as agent, anyio.create_task_group() as group:
            group.start_soon(agent.session((), 0).act, PROMPT)
            await anyio.sleep(0.3)
            start = time.monotonic()
            await agent.session((), 1).act(PROMPT)
            return time.monotonic() - start

    assert anyio.run(main) >= 0.5
    assert len(api.requests) == 3


def test_what_a_turn_took_is_told_where_the_api_tells_it(api: Api) -> None:
    api.answers = [said() | {"usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}}, said()]
    first, second = converse(api, PROMPT, PROMPT)
    assert first.usage == Usage(12, 3)
    assert second.usage is None


def test_a_key_that_the_api_repeats_is_not_shown(api: Api) -> None:
    api.answers = [Response("wrong key: sesame", 401)]
    with pytest.raises(EngineError, match="status 401: wrong key: …"):
        converse(api, PROMPT, api_key="sesame")


def test_the_attempts_are_bounded_and_the_last_problem_is_told(api: Api) -> None:
    api.answers = [Response("overloaded", 503)] * 3
    with pytest.raises(EngineError, match=r"/v1/chat/completions gave no answer in 3 attempts; .*503: overloaded"):
        converse(api, PROMPT, max_attempts=3)
    assert len(api.requests) == 3


def test_a_refusal_is_final(api: Api) -> None:
    api.answers = [Response("no such model", 404)]
    with pytest.raises(EngineError, match="refused a request to model 'm': status 404: no such model"):
        converse(api, PROMPT)
    assert len(api.requests) == 1


def test_a_context_that_is_full_ends_the_episode_and_is_no_fault_of_the_api(api: Api) -> None:
    full = {"error": {"message": "This model's maximum context length is 64 tokens"}}
    api.answers = [said(), JSONResponse(full, 400)]
    with pytest.raises(ContextFullError, match="maximum context length is 64 tokens"):
        converse(api, PROMPT, PROMPT)
    api.answers = [JSONResponse(full, 400)]
    with pytest.raises(PromptTooLongError, match="maximum context length is 64 tokens"):
        converse(api, PROMPT)


def test_an_answer_that_takes_too_long_counts_as_a_failed_attempt(api: Api) -> None:
    api.answers = [1.0, said("quick")]
    [turn] = converse(api, PROMPT, timeout=0.2)
    assert turn.message.content == "quick"


def test_nobody_there_is_told_with_the_address(api: Api) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = Api()
        nobody.url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(EngineError, match=rf"{nobody.url}/.* in 2 attempts; the last: ConnectError"):
            converse(nobody, PROMPT, max_attempts=2)


@pytest.mark.parametrize("body", [{"choices": []}, {"error": "no"}, {"choices": [{"message": {"content": 5}}]}])
def test_an_answer_of_another_shape_is_refused_with_the_reason(api: Api, body: dict[str, Any]) -> None:
    api.answers = [body]
    with pytest.raises(EngineError, match="answered in a shape that is not the chat API's"):
        converse(api, PROMPT)


def test_an_address_without_a_scheme_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"'localhost:8000', but should look like http://"):
        ChatAgent("localhost:8000", "m", Sampling())


def test_many_episodes_ask_at_once(api: Api) -> None:
    api.answers = [0.3] * 150

    async def main() -> float:
        async with ChatAgent(api.url, "m", Sampling()) as agent:
            start = time.monotonic()
            async with anyio.create_task_group() as group:
                for _ in range(150):
                    group.start_soon(agent.session((), 0).act, PROMPT)
            return time.monotonic() - start

    assert anyio.run(main) < 10
    assert len(api.requests) == 150


def test_closes_its_connections() -> None:
    async def main() -> httpx.AsyncClient:
        async with ChatAgent("http://127.0.0.1:1/v1", "m", Sampling()) as agent:
            return agent._http

    assert anyio.run(main).is_closed
