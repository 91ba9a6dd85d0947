"""What the trainer relies on an engine for, over HTTP: one suite, run unchanged against each kind of engine.

A test module that takes everything from here (`from tests.protocol import *`) and has a fixture `engine` runs it.
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from select import select
from typing import Any, NamedTuple

import anyio
import httpx
import openai
import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from moonmill.agents.client import InferenceClient
from moonmill.agents.control import EngineControl
from moonmill.errors import EngineError, PromptTooLongError
from moonmill.types import Completion, Sampling

pytestmark = pytest.mark.anyio

BASE = "policy-v0"
PROMPT = [12, 13, 14, 15]
EXACT = 1e-3
"""How far a log-probability may be from the reference's."""
SECONDS = 120
"""For one answer, on a machine that does other things."""


class Engine(NamedTuple):
    """An engine that serves a model as `policy-v0`, with room for two adapters beside it."""

    base_url: str
    max_length: int
    max_batch: int
    model: Path
    adapters: list[Path]


@pytest.fixture(scope="module")
def http(engine: Engine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.base_url, timeout=SECONDS) as client:
        yield client


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.base_url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield client


@pytest.fixture
async def inference(engine: Engine) -> AsyncIterator[InferenceClient]:
    async with InferenceClient(engine.base_url) as client:
        yield client


@pytest.fixture
async def control(engine: Engine) -> AsyncIterator[EngineControl]:
    """Whatever a test loaded as version 1 or 2 is unloaded after it."""
    async with EngineControl(engine.base_url) as control:
        yield control
        for version in (1, 2):
            await control.unload_version(version)


def body_of(**fields: Any) -> dict[str, Any]:
    asks = {"logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
    return {"model": BASE, "prompt": PROMPT, "max_tokens": 8, "seed": 3, **asks, **fields}


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/completions", json=body_of(**fields))
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return dict(choice)


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream up to its end, which must be marked."""
    for line in lines:
        if line == "data: [DONE]":
            return
        if line:
            yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream has no end")


def stream(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    with http.stream("POST", "/v1/completions", json=body_of(stream=True, **fields)) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [event["choices"][0] for event in events_of(answer.iter_lines())]


def tokens_of(pieces: list[dict[str, Any]]) -> list[int]:
    return [*chain.from_iterable(piece["token_ids"] for piece in pieces)]


def logprobs_of(*pieces: dict[str, Any]) -> list[float]:
    return [*chain.from_iterable(piece["logprobs"]["token_logprobs"] for piece in pieces)]


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """The status and the message of an error in OpenAI's shape."""
    error = answer.json()["error"]
    assert {"message", "type", "code"} <= {*error}
    assert error["code"] == answer.status_code
    assert "Traceback" not in error["message"]
    return answer.status_code, error["message"]


def load(http: httpx.Client, name: str, folder: Path) -> httpx.Response:
    return http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})


def unload(http: httpx.Client, name: str) -> httpx.Response:
    return http.post("/v1/unload_lora_adapter", json={"lora_name": name})


@contextmanager
def loaded(http: httpx.Client, name: str, folder: Path) -> Iterator[None]:
    answer = load(http, name, folder)
    assert answer.status_code == 200, answer.text
    try:
        yield
    finally:
        assert unload(http, name).status_code == 200


@cache
def model_of(folder: Path, adapter: Path | None) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return model if adapter is None else PeftModel.from_pretrained(model, adapter).eval()


def expected(
    engine: Engine,
    tokens: list[int],
    adapter: Path | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
) -> list[float]:
    """Log-probabilities of `tokens` after the prompt, by one forward pass and the warpers of transformers."""
    with torch.inference_mode():
        logits = model_of(engine.model, adapter)(input_ids=torch.tensor([PROMPT + tokens])).logits[0]
    scores = logits[len(PROMPT) - 1 : -1]
    nothing = torch.empty(0, dtype=torch.long)
    if temperature:
        scores = TemperatureLogitsWarper(temperature)(nothing, scores)
        scores = TopKLogitsWarper(top_k)(nothing, scores) if top_k else scores
        scores = TopPLogitsWarper(top_p)(nothing, scores) if top_p < 1 else scores
    found: list[float] = scores.log_softmax(-1)[range(len(tokens)), tokens].tolist()
    return found


def metric(http: httpx.Client, name: str) -> float:
    """A number of `/metrics`; engines call it alike, but for what stands before the name."""
    values = re.findall(rf"^\w+[:_](?:{name})(?:{{.*}})? (\S+)$", http.get("/metrics").text, re.MULTILINE)
    assert len(values) == 1, f"{name}: {values}"
    return float(values[0])


# What is there


def test_it_is_healthy_and_tells_what_it_serves(engine: Engine, http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert cards[BASE]["max_model_len"] == engine.max_length


# Completions


def test_a_completion_has_tokens_and_logprobs(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json=body_of()).json()
    (choice,) = answer["choices"]
    assert (answer["object"], answer["model"]) == ("text_completion", BASE)
    assert {k: answer["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        "prompt_tokens": 4,
        "completion_tokens": 8,
        "total_tokens": 12,
    }
    assert choice["prompt_token_ids"] == PROMPT
    assert len(choice["token_ids"]) == len(logprobs_of(choice)) == 8
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)


def test_tokens_are_named_by_their_ids(http: httpx.Client) -> None:
    choice = complete(http, logprobs=2)
    names = [f"token_id:{token}" for token in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    for name, value, top in zip(names, logprobs_of(choice), choice["logprobs"]["top_logprobs"], strict=True):
        assert top[name] == value
        assert all(key.startswith("token_id:") for key in top)
        assert len(top) in (2, 3), "the likeliest two, and the one that was drawn"


def test_what_was_not_asked_for_is_not_given(http: httpx.Client) -> None:
    choice = complete(http, logprobs=None, return_token_ids=None)
    assert choice["logprobs"] is choice["token_ids"] is choice["prompt_token_ids"] is None


def test_a_seed_repeats_and_another_does_not(http: httpx.Client) -> None:
    one, again, other = (complete(http, seed=seed, max_tokens=20)["token_ids"] for seed in (1, 1, 2))
    assert one == again != other


def test_without_a_seed_nothing_repeats(http: httpx.Client) -> None:
    one, other = (complete(http, seed=None, max_tokens=20)["token_ids"] for _ in range(2))
    assert one != other


def test_a_stream_is_the_completion_in_pieces(http: httpx.Client) -> None:
    whole = complete(http, max_tokens=20)
    pieces = stream(http, max_tokens=20)
    assert len(pieces) > 1
    assert tokens_of(pieces) == whole["token_ids"]
    assert logprobs_of(*pieces) == pytest.approx(logprobs_of(whole), abs=EXACT)
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert {piece["finish_reason"] for piece in pieces[:-1]} == {None}
    assert pieces[-1]["finish_reason"] == "length"


def test_a_stream_tells_its_usage_where_it_is_asked_for(http: httpx.Client) -> None:
    body = body_of(stream=True, stream_options={"include_usage": True})
    with http.stream("POST", "/v1/completions", json=body) as answer:
        *_, last = events_of(answer.iter_lines())
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_token_ends_it_and_is_part_of_it(http: httpx.Client, streamed: bool) -> None:
    free: list[int] = complete(http, max_tokens=20)["token_ids"]
    stop = next(token for i, token in enumerate(free) if i >= 6 and token not in free[:i])
    fields = {"max_tokens": 20, "stop_token_ids": [0, stop]}
    pieces = stream(http, **fields) if streamed else [complete(http, **fields)]
    ends = min(free.index(token) for token in fields["stop_token_ids"] if token in free)
    assert tokens_of(pieces) == free[: ends + 1]
    assert len(logprobs_of(*pieces)) == ends + 1
    assert (pieces[-1]["finish_reason"], pieces[-1]["stop_reason"]) == ("stop", free[ends])


def test_the_last_token_there_is_room_for_is_sampled(engine: Engine, http: httpx.Client) -> None:
    choice = complete(http, max_tokens=engine.max_length - len(PROMPT))
    assert len(choice["token_ids"]) == engine.max_length - len(PROMPT)
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8, "top_k": 12},
        {"temperature": 0.0},
        {"temperature": 0.0, "top_p": 0.5, "top_k": 3},
    ],
    ids=lambda sampling: " ".join(f"{name}={value}" for name, value in sampling.items()),
)
def test_logprobs_are_of_what_was_drawn_from(engine: Engine, http: httpx.Client, sampling: dict[str, Any]) -> None:
    choice = complete(http, max_tokens=64, **sampling)
    tokens: list[int] = choice["token_ids"]
    assert logprobs_of(choice) == pytest.approx(expected(engine, tokens, **sampling), abs=EXACT)
    if not sampling["temperature"]:
        with torch.inference_mode():
            logits = model_of(engine.model, None)(input_ids=torch.tensor([PROMPT + tokens])).logits[0]
        assert tokens == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()


def test_requests_at_once_do_not_touch_each_other(engine: Engine) -> None:
    """Each with a sampling of its own, in one batch."""
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9}, {"temperature": 0.0}]
    choices: dict[int, dict[str, Any]] = {}

    async def run() -> None:
        async def one(i: int, kind: dict[str, Any]) -> None:
            answer = await http.post("/v1/completions", json=body_of(seed=i, max_tokens=40, **kind))
            choices[i] = answer.json()["choices"][0]

        async with httpx.AsyncClient(base_url=engine.base_url, timeout=SECONDS) as http, anyio.create_task_group() as t:
            for i, kind in enumerate(kinds):
                t.start_soon(one, i, kind)

    anyio.run(run)
    for i, kind in enumerate(kinds):
        reference = expected(engine, choices[i]["token_ids"], **kind)
        assert logprobs_of(choices[i]) == pytest.approx(reference, abs=EXACT), kind


# What is refused


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_that_does_not_fit_the_context_is_refused(engine: Engine, http: httpx.Client, streamed: bool) -> None:
    body = body_of(prompt=[7] * (engine.max_length + 1), max_tokens=1, stream=streamed)
    status, message = refusal(http.post("/v1/completions", json=body))
    assert status == 400
    assert f"maximum context length is {engine.max_length}" in message


def test_a_prompt_that_leaves_no_room_is_refused(engine: Engine, http: httpx.Client) -> None:
    body = body_of(prompt=[7] * engine.max_length, max_tokens=1)
    assert refusal(http.post("/v1/completions", json=body))[0] == 400


def test_a_model_that_is_not_there_is_not_found(http: httpx.Client) -> None:
    status, message = refusal(http.post("/v1/completions", json=body_of(model="nobody")))
    assert status == 404
    assert "nobody" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -5},
        {"max_tokens": "many"},
        {"max_tokens": 0},
        {"prompt": [12, 100_000]},
        {"prompt": []},
        {"prompt": {"a": 1}},
        {"logprobs": "all"},
        {"logprobs": 1000},
        {"stop_token_ids": ["x"]},
    ],
    ids=lambda fields: " ".join(fields),
)
def test_what_cannot_be_is_refused(http: httpx.Client, fields: dict[str, Any]) -> None:
    status, _ = refusal(http.post("/v1/completions", json=body_of(**fields)))
    assert status in (400, 422)


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"\xff\xfe", b'"text"'])
def test_what_is_no_request_is_refused(http: httpx.Client, content: bytes) -> None:
    answer = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert refusal(answer)[0] in (400, 422)


# Adapters


def test_an_adapter_answers_as_peft_does(engine: Engine, http: httpx.Client) -> None:
    first, second = engine.adapters[:2]
    with loaded(http, "one", first), loaded(http, "two", second):
        assert {BASE, "one", "two"} <= {card["id"] for card in http.get("/v1/models").json()["data"]}
        for name, adapter in (("one", first), ("two", second), (BASE, None), ("one", first)):
            choice = complete(http, model=name, max_tokens=40, temperature=0.7)
            tokens: list[int] = choice["token_ids"]
            own = expected(engine, tokens, adapter, temperature=0.7)
            assert logprobs_of(choice) == pytest.approx(own, abs=EXACT), name
            if adapter:
                base = expected(engine, tokens, temperature=0.7)
                assert max(abs(a - b) for a, b in zip(own, base, strict=True)) > 100 * EXACT, "it changes the model"


def test_a_name_is_loaded_once(engine: Engine, http: httpx.Client) -> None:
    with loaded(http, "one", engine.adapters[0]):
        before = complete(http, model="one")
        status, message = refusal(load(http, "one", engine.adapters[1]))
        assert status == 400
        assert "already been loaded" in message
        assert complete(http, model="one")["token_ids"] == before["token_ids"]


def test_an_adapter_that_was_unloaded_is_not_found(engine: Engine, http: httpx.Client) -> None:
    with loaded(http, "one", engine.adapters[0]):
        complete(http, model="one")
    assert refusal(http.post("/v1/completions", json=body_of(model="one")))[0] == 404
    status, message = refusal(unload(http, "one"))
    assert status == 404
    assert "one" in message


def test_a_name_that_is_free_again_is_another_adapters(engine: Engine, http: httpx.Client) -> None:
    for adapter in engine.adapters[:2]:
        with loaded(http, "one", adapter):
            choice = complete(http, model="one", max_tokens=20)
        assert logprobs_of(choice) == pytest.approx(expected(engine, choice["token_ids"], adapter), abs=EXACT)


def test_a_folder_that_is_no_adapter_is_refused(http: httpx.Client, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        status, message = refusal(load(http, "none", folder))
        assert 400 <= status < 500
        assert message
    assert refusal(http.post("/v1/completions", json=body_of(model="none")))[0] == 404


def test_a_request_goes_on_while_another_version_comes_and_goes(engine: Engine, http: httpx.Client) -> None:
    fields = {"model": "one", "max_tokens": engine.max_length - len(PROMPT)}
    with loaded(http, "one", engine.adapters[0]):
        undisturbed = complete(http, **fields)
        with http.stream("POST", "/v1/completions", json=body_of(stream=True, **fields)) as answer:
            events = events_of(answer.iter_lines())
            pieces = [next(events)["choices"][0]]
            with (
                httpx.Client(base_url=engine.base_url, timeout=SECONDS) as other,
                loaded(other, "two", engine.adapters[1]),
            ):
                complete(other, model="two")
            pieces += [event["choices"][0] for event in events]
    assert tokens_of(pieces) == undisturbed["token_ids"]
    assert pieces[-1]["finish_reason"] == "length"


# Clients that go away


def test_streams_that_are_dropped_free_their_places(engine: Engine, http: httpx.Client) -> None:
    many, length = 2 * engine.max_batch, engine.max_length - len(PROMPT)
    sampled = "generat(?:ed|ion)_tokens_total"
    before = metric(http, sampled)
    with ExitStack() as stack:
        # Sockets: a client that is slow to close would let them be sampled to their ends.
        streams = [
            stack.enter_context(asked(http.base_url, stream=True, seed=i, max_tokens=length)) for i in range(many)
        ]
        until(lambda: len(select(streams, [], [], 0)[0]) >= engine.max_batch)
    until(lambda: not metric(http, "(?:num_)?requests_running") + metric(http, "(?:num_)?requests_waiting"))
    assert complete(http)["finish_reason"] == "length"
    assert metric(http, sampled) - before < many * length / 2, "nobody waits for the rest of them"


def asked(url: httpx.URL, **fields: Any) -> socket.socket:
    """A connection on which a completion was asked for, and nothing read."""
    body = json.dumps(body_of(**fields)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((url.host, url.port), timeout=SECONDS)
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


# Our client


async def test_interrupted_completions_go_on_under_the_new_version(
    engine: Engine, inference: InferenceClient, control: EngineControl
) -> None:
    total = engine.max_length - len(PROMPT)

    async def interrupted_twice() -> list[Completion]:
        """Completions that go on under another version once one of them has tokens of all versions before it."""
        done: list[Completion] = []

        async def run(seed: int) -> None:
            done.append(await inference.complete(PROMPT, Sampling(max_tokens=total), seed=seed, stop_token_ids=()))

        await inference.use_version(0)
        async with anyio.create_task_group() as tasks:
            for seed in range(engine.max_batch):
                tasks.start_soon(run, seed)
            for version in (1, 2):
                while not done and not any({*run.versions} >= {*range(version)} for run in inference._running):  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                await inference.use_version(version)
        return done

    await control.load_version(1, engine.adapters[0])
    await control.load_version(2, engine.adapters[1])
    results: list[Completion] = []
    with anyio.fail_after(SECONDS):
        # On a busy machine all tokens of a completion may arrive at once, before it can be interrupted.
        while {0, 1, 2} not in [{*done.versions} for done in results]:
            results += await interrupted_twice()
    for done in results:
        assert len(done.tokens) == len(done.logprobs) == len(done.versions) == total
        assert done.versions == tuple(sorted(done.versions))
        by_version = [expected(engine, [*done.tokens], adapter) for adapter in (None, *engine.adapters[:2])]
        own = [by_version[version][i] for i, version in enumerate(done.versions)]
        assert [*done.logprobs] == pytest.approx(own, abs=EXACT), "each token is of the version it says"


async def test_our_client_repeats_with_a_seed_and_stops(inference: InferenceClient) -> None:
    sampling = Sampling(max_tokens=20)
    one, again = [await inference.complete(PROMPT, sampling, seed=1, stop_token_ids=(), session="s") for _ in range(2)]
    assert one.tokens == again.tokens
    stop = one.tokens[9]
    stopped = await inference.complete(PROMPT, sampling, seed=1, stop_token_ids=(stop,))
    assert stopped.tokens == one.tokens[: one.tokens.index(stop) + 1]
    assert (one.finish_reason, stopped.finish_reason) == ("length", "stop")


@pytest.mark.parametrize(("more", "wanted"), [(1, 1), (0, 1), (0, 500), (-150, 500)])
async def test_our_client_is_told_of_a_completion_without_room(
    engine: Engine, inference: InferenceClient, more: int, wanted: int
) -> None:
    with pytest.raises(PromptTooLongError, match=f"up to {wanted} more do not fit the engine's context"):
        await inference.complete(
            [7] * (engine.max_length + more), Sampling(max_tokens=wanted), seed=0, stop_token_ids=()
        )


async def test_our_client_is_told_of_what_cannot_be(inference: InferenceClient) -> None:
    with pytest.raises(EngineError, match="refused a request"):
        await inference.complete([100_000], Sampling(max_tokens=1), seed=0, stop_token_ids=())


async def test_versions_are_loaded_probed_replaced_and_forgotten(
    engine: Engine, control: EngineControl, tmp_path: Path
) -> None:
    told = [await control.probe(PROMPT, 0)]
    for adapter in engine.adapters[:2]:
        await control.load_version(1, adapter)
        told.append(await control.probe(PROMPT, 1))
    for value, adapter in zip(told, (None, *engine.adapters[:2]), strict=True):
        with torch.inference_mode():
            logits = model_of(engine.model, adapter)(input_ids=torch.tensor([PROMPT])).logits[0, -1]
        assert value == pytest.approx(logits.log_softmax(-1).max().item(), abs=EXACT)
    await control.unload_version(1)
    await control.unload_version(1)
    with pytest.raises(EngineError, match="did not answer for version 1"):
        await control.probe(PROMPT, 1)
    with pytest.raises(EngineError, match=f"did not load version 1 from {tmp_path}"):
        await control.load_version(1, tmp_path)
    assert await control.ailment(SECONDS) == ""


# Other clients


def test_openais_library_completes(client: openai.OpenAI) -> None:
    fields: Any = {"model": BASE, "temperature": 0, "max_tokens": 12}
    answer = client.completions.create(prompt=PROMPT, logprobs=2, extra_body={"return_token_ids": True}, **fields)
    (choice,) = answer.choices
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert len(choice.logprobs.token_logprobs) == 12
    assert choice.model_extra is not None
    assert len(choice.model_extra["token_ids"]) == 12
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    chunks = [*client.completions.create(prompt=PROMPT, stream=True, **fields)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_openais_library_sends_text_and_lists_models(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=BASE, prompt="hello", max_tokens=3, stop=["zz"])
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 3)
    assert BASE in [model.id for model in client.models.list()]


def test_openais_library_raises_its_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.completions.create(model="nobody", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=BASE, prompt="x", temperature=-1)


def curl(engine: Engine, body: dict[str, Any]) -> str:
    command = ["curl", "-sSN", f"{engine.base_url}/v1/completions", "-H", "Content-Type: application/json"]
    command += ["-d", json.dumps(body)]
    return subprocess.run(command, capture_output=True, check=True, timeout=SECONDS, text=True).stdout


def test_curl_completes(engine: Engine) -> None:
    body = body_of(temperature=0)
    (choice,) = json.loads(curl(engine, body))["choices"]
    lines = iter(curl(engine, body | {"stream": True}).splitlines())
    pieces = [event["choices"][0] for event in events_of(lines)]
    assert len(choice["token_ids"]) == 8
    assert tokens_of(pieces) == choice["token_ids"]
