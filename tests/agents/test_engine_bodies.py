"""Large prompts and slow clients: what they may cost, and that nobody else pays."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import anyio
import httpx
import pytest
from starlette.requests import Request

from moonmill.agents.client import InferenceClient
from moonmill.agents.engine import bodies
from moonmill.agents.engine.protocol import ApiError
from moonmill.agents.processes import ServerProcess
from moonmill.errors import PromptTooLongError
from moonmill.types import Sampling

from .conftest import MAX_LENGTH

LIMIT = 2**20 + 64 * MAX_LENGTH
TEXT = "1+2*3 " * (LIMIT // 12)
"""Half of what a prompt may be, and a second of tokenizing."""
ROUTES = {
    "/v1/completions": {"prompt": TEXT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
}


@pytest.fixture(scope="module")
def http(engine: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.base_url, timeout=60) as client:
        yield client


def message_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/load_lora_adapter"])
def test_a_body_of_10_megabytes_is_refused_unread(http: httpx.Client, path: str) -> None:
    response = http.post(path, content=b" " * 10_000_000)
    assert response.status_code == 413
    assert message_of(response) == (
        f"the body has 10000000 bytes; the limit is {LIMIT}, for this model's maximum context length is {MAX_LENGTH} "
        "tokens: send a shorter prompt"
    )
    assert http.get("/health").status_code == 200


def test_a_body_that_does_not_tell_its_size_is_read_up_to_the_limit(http: httpx.Client) -> None:
    response = http.post("/v1/completions", content=(b" " * 100_000 for _ in range(100)))
    assert response.status_code == 413
    assert message_of(response).startswith(f"the body has more than {LIMIT} bytes")


@pytest.mark.parametrize("path", ROUTES)
def test_while_a_long_text_is_tokenized_others_go_on(http: httpx.Client, path: str) -> None:
    answers: list[httpx.Response] = []
    body = json.dumps({"model": "policy-v0", **ROUTES[path]}).encode()
    assert len(body) < LIMIT
    long = [
        threading.Thread(target=lambda: answers.append(httpx.post(f"{http.base_url}{path}", content=body, timeout=60)))
        for _ in range(2)
    ]
    slowest, others, start = 0.0, 0, time.monotonic()
    for thread in long:
        thread.start()
    while any(thread.is_alive() for thread in long):
        begin = time.monotonic()
        assert http.get("/health").status_code == 200
        short = http.post("/v1/completions", json={"model": "policy-v0", "prompt": "hello", "max_tokens": 2})
        assert short.status_code == 200
        slowest, others = max(slowest, time.monotonic() - begin), others + 1
    took = time.monotonic() - start
    for answer in answers:
        assert answer.status_code == 400
        assert "maximum context length" in message_of(answer)
    assert others > 5
    assert slowest < took / 3, "nobody waited for even one of the two"


@pytest.mark.anyio
async def test_the_client_takes_a_refused_body_for_a_prompt_that_is_too_long(engine: ServerProcess) -> None:
    async with InferenceClient(engine.base_url) as client:
        with pytest.raises(PromptTooLongError, match="maximum context length"):
            await client.complete([3] * LIMIT, Sampling(max_tokens=1), seed=0, stop_token_ids=[])


@pytest.mark.anyio
async def test_a_body_that_trickles_in_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_SECONDS", 0.2)

    async def receive() -> dict[str, object]:
        await anyio.sleep(0.05)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(ApiError, match=r"did not arrive within 0\.2 s: 3 bytes") as refused:
        await bodies.read_body(Request({"type": "http", "headers": []}, receive), MAX_LENGTH)
    assert refused.value.status == 408


def request(fields: dict[str, object], length: int | None = None) -> bytes:
    """A completion's request; one that announces more than it has goes on for ever."""
    body = json.dumps({"model": "policy-v0", "prompt": [3], **fields}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (length or len(body), body)


@pytest.mark.parametrize(
    "sent",
    [request({"stream": True, "logprobs": 20, "max_tokens": MAX_LENGTH - 1}), request({}, length=LIMIT)],
    ids=["reading nothing", "never done sending"],
)
def test_clients_that_hang_hold_up_nobody(engine: ServerProcess, http: httpx.Client, sent: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", engine.ready["port"])))
            client.sendall(sent)
        answer = http.post("/v1/completions", json={"model": "policy-v0", "prompt": [3], "max_tokens": 2})
        assert answer.status_code == 200
    left = time.monotonic()
    while not {"moonmill_requests_running 0", "moonmill_requests_waiting 0"} <= {
        *http.get("/metrics").text.split("\n")
    }:
        assert time.monotonic() - left < 5, "clients that are gone keep no slot"
