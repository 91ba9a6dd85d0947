"""The engine as a process, spoken to as any client of vLLM or OpenAI would."""

import json
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from moonmill.agents.processes import ServerProcess

from .conftest import IDS, MAX_LENGTH, SAYS, WORDS, engine_argv, markov_weights, random_model

PROMPT = [IDS[c] for c in "hello"]
CALCULATE: Any = {
    "type": "function",
    "function": {
        "name": "calculate",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


@pytest.fixture(scope="module")
def http(engine: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.base_url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def client(engine: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{engine.base_url}/v1", api_key="none", max_retries=0)


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"model": "policy-v0", "prompt": PROMPT, "max_tokens": 8, "seed": 3, "return_token_ids": True, **fields}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(http: httpx.Client, path: str = "/v1/completions", **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "policy-v0", "stream": True, **fields}
    with http.stream("POST", path, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def refusal(http: httpx.Client, path: str = "/v1/completions", **fields: Any) -> tuple[int, str]:
    body = {"model": "policy-v0", **({"prompt": PROMPT} if path == "/v1/completions" else {}), **fields}
    response = http.post(path, json=body)
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    return response.status_code, error["message"]


@contextmanager
def version(http: httpx.Client, says: str, folder: Path) -> Iterator[None]:
    """A version by the name of what it says, as a call."""
    save_file(markov_weights(random_model(), says), folder / "model.safetensors")
    body = {"lora_name": says, "lora_path": str(folder)}
    http.post("/v1/load_lora_adapter", json=body).raise_for_status()
    try:
        yield
    finally:
        http.post("/v1/unload_lora_adapter", json=body).raise_for_status()


def offer(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def chat(http: httpx.Client, streamed: bool, **fields: Any) -> tuple[dict[str, Any], str]:
    """The message a chat is answered with, put together from its pieces, and its finish reason."""
    fields = {"messages": [{"role": "user", "content": "?"}], "temperature": 0, **fields}
    if not streamed:
        choice = http.post("/v1/chat/completions", json=fields).json()["choices"][0]
        return choice["message"], choice["finish_reason"]
    choices = [e["choices"][0] for e in stream(http, "/v1/chat/completions", **fields)]
    calls = joined(c["delta"].get("tool_calls") or [] for c in choices)
    content = "".join(c["delta"].get("content") or "" for c in choices)
    return {"content": content, "tool_calls": calls or None}, choices[-1]["finish_reason"]


def joined(parts: Iterable[list[Any]]) -> list[Any]:
    return [*chain.from_iterable(parts)]


def metric(http: httpx.Client, name: str) -> int:
    lines = http.get("/metrics").text.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"moonmill_{name} "))


# Completions


def test_a_completion_has_vllms_shape(http: httpx.Client) -> None:
    answer = complete(http, logprobs=1)
    choice = answer["choices"][0]
    assert answer["object"] == "text_completion"
    assert answer["model"] == "policy-v0"
    assert answer["prompt_token_ids"] == PROMPT
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    assert len(choice["token_ids"]) == 8
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    logprobs = choice["logprobs"]
    assert {len(logprobs[field]) for field in logprobs} == {8}
    assert logprobs["tokens"] == [WORDS[t] for t in choice["token_ids"]]
    assert logprobs["text_offset"][:2] == [0, len(logprobs["tokens"][0])]
    assert logprobs["top_logprobs"][0][logprobs["tokens"][0]] == logprobs["token_logprobs"][0]


def test_token_ids_and_logprobs_are_given_only_where_asked_for(http: httpx.Client) -> None:
    answer = complete(http, return_token_ids=False)
    assert answer["prompt_token_ids"] is None
    assert answer["choices"][0]["token_ids"] is None
    assert answer["choices"][0]["logprobs"] is None


def test_logprobs_are_a_full_forwards(http: httpx.Client, reference: PreTrainedModel) -> None:
    choice = complete(http, logprobs=0, max_tokens=64, temperature=0.7)["choices"][0]
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([PROMPT + choice["token_ids"]])).logits[0, len(PROMPT) - 1 : -1]
    expected = (logits / 0.7).log_softmax(-1)[range(64), choice["token_ids"]]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_seed_repeats_and_another_does_not(http: httpx.Client) -> None:
    one, again, other = (complete(http, seed=s, max_tokens=20)["choices"][0]["token_ids"] for s in (1, 1, 2))
    assert one == again != other


def test_text_and_token_ids_are_the_same_prompt(http: httpx.Client) -> None:
    from_text, from_list = (complete(http, prompt=p) for p in ("hello", [PROMPT]))
    assert from_text["prompt_token_ids"] == from_list["prompt_token_ids"] == PROMPT
    assert from_text["choices"] == from_list["choices"]


def test_a_stream_is_the_completion_in_pieces(http: httpx.Client) -> None:
    fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 10, "seed": 3, "return_token_ids": True, "logprobs": 0}
    whole = complete(http, **fields)["choices"][0]
    *events, usage = stream(http, **fields, stream_options={"include_usage": True})
    pieces = [event["choices"][0] for event in events]
    assert [len(p["token_ids"]) for p in pieces] == [4, 4, 2], "as --stream-interval says"
    assert joined(p["token_ids"] for p in pieces) == whole["token_ids"]
    assert "".join(p["text"] for p in pieces) == whole["text"]
    for field in ("token_logprobs", "text_offset"):
        assert joined(p["logprobs"][field] for p in pieces) == whole["logprobs"][field]
    assert [p["finish_reason"] for p in pieces] == [None, None, "length"]
    assert [p["prompt_token_ids"] for p in pieces] == [PROMPT, None, None]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 10


def test_stop_token_ids_end_it(http: httpx.Client) -> None:
    choice = complete(http, model="markov", temperature=0, stop_token_ids=[IDS["<end>"]], max_tokens=20)["choices"][0]
    assert choice["token_ids"] == [IDS[t] for t in ("<call>", *SAYS, "</call>", "<end>")]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", IDS["<end>"])
    assert choice["text"] == SAYS, "special tokens are no text"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_ends_the_text_before_it(http: httpx.Client, streamed: bool) -> None:
    fields: dict[str, Any] = {"model": "markov", "temperature": 0, "stop": ["*3", "zz"], "return_token_ids": True}
    if streamed:
        choices = [e["choices"][0] for e in stream(http, prompt=PROMPT, max_tokens=16, **fields)]
    else:
        choices = complete(http, **fields)["choices"]
    assert "".join(c["text"] for c in choices) == "12"
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "*3")
    assert len(joined(c["token_ids"] for c in choices)) == 5, "<call> 1 2 * 3"


def test_the_next_turn_finds_its_tokens_cached(http: httpx.Client) -> None:
    first = complete(http, prompt=[7] * 30)["choices"][0]["token_ids"]
    before = metric(http, "cached_prompt_tokens_total")
    complete(http, prompt=[7] * 30 + first + [8, 9])
    assert metric(http, "cached_prompt_tokens_total") - before == 30 + len(first) - 1


def test_a_dropped_connection_aborts_at_once(http: httpx.Client) -> None:
    for streamed in (True, False):
        body = {"model": "policy-v0", "prompt": [3], "max_tokens": MAX_LENGTH - 1, "stream": streamed}
        start = time.monotonic()
        try:
            with httpx.stream("POST", f"{http.base_url}/v1/completions", json=body, timeout=0.05) as response:
                next(response.iter_raw())
        except httpx.ReadTimeout:
            pass
        while metric(http, "requests_running"):
            assert time.monotonic() - start < 5
        assert metric(http, "requests_waiting") == 0


# Chat


def test_a_chat_answers_with_a_message(http: httpx.Client) -> None:
    body = {"model": "policy-v0", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "logprobs": True}
    answer = http.post("/v1/chat/completions", json=body).json()
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in ("length", "stop")
    assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    assert set(choice["logprobs"]["content"][0]) == {"token", "logprob", "bytes", "top_logprobs"}


def test_a_chat_calls_a_tool(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "what is it?"}]
    answer = client.chat.completions.create(
        model="markov",
        messages=messages,
        tools=[CALCULATE],
        temperature=0,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "calculate"
    assert json.loads(call.function.arguments) == {"expression": SAYS}

    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "408"}]
    follow_up = client.chat.completions.create(
        model="markov", messages=messages, tools=[CALCULATE], temperature=0, max_tokens=3
    )
    assert follow_up.usage is not None
    assert answer.usage is not None
    added = ["<tool>", *"408", "<assistant>"]
    assert follow_up.usage.prompt_tokens == answer.usage.total_tokens + len(added)


def test_a_streamed_chat_calls_a_tool(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="markov",
            messages=[{"role": "user", "content": "?"}],
            tools=[CALCULATE],
            temperature=0,
            stream=True,
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
    assert [c.function.arguments for c in calls if c.function] == [
        json.dumps({"expression": SAYS}, separators=(",", ":"))
    ]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("says", "tools"),
    [("12*34", ()), ("12*34", ("f", "g")), ("h{}", ("f", "g")), ("f{1}", ("f", "g")), ("f{}", ())],
    ids=["no name, none offered", "no name", "not offered", "no JSON", "none offered"],
)
def test_a_call_that_no_client_could_make_is_text(
    http: httpx.Client, tmp_path: Path, says: str, tools: tuple[str, ...], streamed: bool
) -> None:
    with version(http, says, tmp_path):
        message, finish = chat(http, streamed, model=says, tools=[offer(name) for name in tools])
    assert (message["content"], message.get("tool_calls")) == (says, None)
    assert finish == "stop"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_that_is_text_keeps_its_tags_where_they_are_asked_for(http: httpx.Client, streamed: bool) -> None:
    message, _ = chat(http, streamed, model="markov", skip_special_tokens=False)
    assert message["content"] == f"<call>{SAYS}</call><end>"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_of_one_of_several_tools_is_a_call(http: httpx.Client, tmp_path: Path, streamed: bool) -> None:
    with version(http, "g{}", tmp_path):
        message, finish = chat(http, streamed, model="g{}", tools=[offer("f"), offer("g")])
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "g", "arguments": "{}"}
    assert finish == "tool_calls"


def test_a_streamed_chat_tells_nothing_of_a_stop_string(http: httpx.Client) -> None:
    events = stream(
        http,
        "/v1/chat/completions",
        model="markov",
        messages=[{"role": "user", "content": "?"}],
        temperature=0,
        stop=["*3"],
    )
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events) == "12"


def test_a_streamed_chat_is_the_message_in_pieces(http: httpx.Client) -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "seed": 4}
    whole = http.post("/v1/chat/completions", json={"model": "policy-v0", **fields}).json()
    events = stream(http, "/v1/chat/completions", **fields)
    told = "".join(e["choices"][0]["delta"].get("content") or "" for e in events)
    assert told == (whole["choices"][0]["message"]["content"] or "")
    assert events[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


# Clients


def test_openais_library_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="markov", prompt="hello", temperature=0, max_tokens=5, logprobs=2)
    assert answer.choices[0].text == SAYS[:4]
    assert answer.choices[0].logprobs is not None
    texts = [
        c.choices[0].text for c in client.completions.create(model="markov", prompt="x", temperature=0, stream=True)
    ]
    assert "".join(texts) == SAYS
    assert [m.id for m in client.models.list()][:2] == ["policy-v0", "markov"]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="nobody", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="markov", prompt="x", temperature=-1)


def test_curl_completes(engine: ServerProcess) -> None:
    body = json.dumps({"model": "markov", "prompt": "hello", "temperature": 0, "max_tokens": 3})
    command = ["curl", "-sS", f"{engine.base_url}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout)
    assert answer["choices"][0]["text"] == SAYS[:2]


# Versions


def test_a_version_can_be_loaded_used_and_unloaded(http: httpx.Client, other_dir: Path) -> None:
    before = complete(http, temperature=0)["choices"][0]["token_ids"]
    load = http.post("/v1/load_lora_adapter", json={"lora_name": "policy-v1", "lora_path": str(other_dir)})
    assert load.status_code == 200
    assert load.text.startswith("Success")
    after = complete(http, model="policy-v1", temperature=0)["choices"][0]["token_ids"]
    assert after != before == complete(http, temperature=0)["choices"][0]["token_ids"]
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert cards["policy-v1"]["root"] == str(other_dir)
    assert cards["policy-v1"]["parent"] == "policy-v0"
    assert metric(http, "versions_loaded") == 3

    status, message = refusal(http, "/v1/load_lora_adapter", lora_name="policy-v1", lora_path=str(other_dir))
    assert status == 400
    assert "already been loaded" in message
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "policy-v1"}).status_code == 200
    assert refusal(http, "/v1/unload_lora_adapter", lora_name="policy-v1")[0] == 404
    assert refusal(http, model="policy-v1")[0] == 404


def test_unloading_ends_a_running_request_with_abort(http: httpx.Client, other_dir: Path) -> None:
    http.post("/v1/load_lora_adapter", json={"lora_name": "gone", "lora_path": str(other_dir)})
    body = {"model": "gone", "prompt": [3], "max_tokens": MAX_LENGTH - 1, "stream": True, "return_token_ids": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        httpx.post(f"{http.base_url}/v1/unload_lora_adapter", json={"lora_name": "gone"}).raise_for_status()
        events = [line for line in lines if line.startswith("data: {")]
    assert json.loads(events[-1].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"


def test_the_base_cannot_be_unloaded(http: httpx.Client) -> None:
    status, message = refusal(http, "/v1/unload_lora_adapter", lora_name="policy-v0")
    assert status == 400
    assert "cannot be unloaded" in message


def test_a_folder_that_is_no_version_is_refused(http: httpx.Client, tmp_path: Path) -> None:
    status, message = refusal(http, "/v1/load_lora_adapter", lora_name="x", lora_path=str(tmp_path))
    assert status == 400
    assert str(tmp_path) in message


@pytest.mark.parametrize("path", ["x" * 4000, "x" * 5000, "a\0b", "", "/dev/null", "pyproject.toml/x"])
def test_a_path_that_is_no_folder_is_refused(http: httpx.Client, path: str) -> None:
    status, message = refusal(http, "/v1/load_lora_adapter", lora_name="x", lora_path=path)
    assert (status, "Error" in message) == (400, False)


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_a_version_needs_a_name(http: httpx.Client, tmp_path: Path, name: str) -> None:
    status, message = refusal(http, "/v1/load_lora_adapter", lora_name=name, lora_path=str(tmp_path))
    assert status == 400
    assert message.startswith("lora_name: Expected `str` of length")


# What is refused


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "nobody"}, 404, "'nobody' does not exist; loaded: policy-v0"),
        ({"prompt": [1] * MAX_LENGTH}, 400, "maximum context length is 192"),
        ({"prompt": [1] * 100, "max_tokens": 100}, 400, "100 are asked for"),
        ({"prompt": []}, 400, "the prompt is empty"),
        ({"prompt": [1, 1000]}, 400, "token 1000"),
        ({"prompt": [1, "a"]}, 400, "not a mixture"),
        ({"prompt": ["a", "b"]}, 400, "one prompt a request"),
        ({"max_tokens": 0}, 400, "max_tokens: Expected `int` >= 1"),
        ({"temperature": "hot"}, 400, "temperature: Expected `float | null`, got `str`"),
        ({"top_p": 0}, 400, "top_p: Expected `float` > 0"),
        ({"temperature": 1e-45}, 400, "temperature: 1e-45 is too low to be computed: the lowest is 1e-05, and 0 is"),
        ({"temperature": 1e-300}, 400, "temperature: 1e-300 is too low"),
        ({"n": 2}, 400, "n=2 is not supported"),
        ({"n": "x" * 100_000}, 400, "is not supported"),
        ({"stop": ["x"] * 65}, 400, "stop: Expected `array` of length <= 64"),
        ({"min_p": 0.1}, 400, "min_p=0.1 is not supported"),
        ({"stop": ""}, 400, "empty string"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_bad_completion_is_refused(http: httpx.Client, fields: dict[str, Any], status: int, message: str) -> None:
    found = refusal(http, **fields)
    assert found[0] == status
    assert message in found[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "'wizard'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url' is not supported"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "maximum context length"),
        ({"messages": [{"role": "user"}], "tool_choice": "required"}, "tool_choice='required'"),
    ],
)
def test_a_bad_chat_is_refused(http: httpx.Client, fields: dict[str, Any], message: str) -> None:
    status, found = refusal(http, "/v1/chat/completions", **fields)
    assert status == 400
    assert message in found


def test_values_that_change_nothing_are_accepted(http: httpx.Client) -> None:
    plain = complete(http)["choices"][0]["token_ids"]
    fields = {"n": 1, "presence_penalty": 0.0, "logit_bias": {}, "min_p": 0, "top_k": -1, "user": "me", "echo": False}
    assert complete(http, **fields)["choices"][0]["token_ids"] == plain


def test_what_is_not_json_and_what_is_not_there_is_refused(http: httpx.Client) -> None:
    assert http.post("/v1/completions", content=b"{").json()["error"]["message"].startswith("the body is not JSON")
    assert http.get("/v1/nothing").json()["error"]["code"] == 404
    assert http.get("/v1/completions").json()["error"]["code"] == 405
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model": "policy-v0", "prompt": [3], "\\u006e": 2}', "n=2 is not supported"),
        (b'{"model": "policy-v0", "prompt": [3], "n": 1, "n": 2}', "n=2 is not supported"),
        (b'{"model": "policy-v0", "prompt": [3], "min_p": 1e999}', "min_p: Number out of range"),
        (b'{"model": "policy-v0", "prompt": "\xff"}', "the body is not JSON: Invalid UTF-8"),
        (b'{"model": "policy-v0", "prompt": "\\ud800"}', "the body is not JSON"),
        (b'{"model": "policy-v0", "prompt": [3], "user": ' + b"[" * 9999 + b"]" * 9999 + b"}", "nested too deeply"),
    ],
    ids=["escaped key", "key twice", "number", "encoding", "half a character", "nesting"],
)
def test_odd_json_is_refused(http: httpx.Client, body: bytes, message: str) -> None:
    response = http.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_a_field_inside_another_is_not_the_requests(http: httpx.Client) -> None:
    complete(http, metadata={"n": 2})


def test_arguments_nested_too_deeply_are_refused(http: httpx.Client) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "[" * 99_999}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert refusal(http, "/v1/chat/completions", messages=messages)[0] == 400


def test_an_error_does_not_repeat_a_megabyte(http: httpx.Client) -> None:
    status, message = refusal(http, model="x" * 1_000_000)
    assert status == 404
    assert len(message) < 1100


# The process


def run_engine(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


def test_a_model_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    argv = [a for a in engine_argv(tmp_path / "nowhere") if a != "--exit-with-stdin"]
    done = run_engine(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == f"error: the model folder {tmp_path / 'nowhere'} does not exist"


def test_a_port_in_use_is_told_in_one_line(model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        argv = [a for a in engine_argv(model_dir) if a != "--exit-with-stdin"]
        argv[argv.index("--port") + 1] = str(port)
        done = run_engine(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == (
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another port (0 takes any)"
    )


def test_sigterm_under_a_stream_ends_it_cleanly_and_the_log_is_empty(model_dir: Path) -> None:
    argv, pipe = engine_argv(model_dir, "--stream-interval", "1"), subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        port = json.loads(process.stdout.readline())["ready"]["port"]
        body = {"model": "policy-v0", "prompt": [3], "max_tokens": MAX_LENGTH - 1, "stream": True}
        with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=10) as response:
            next(response.iter_raw())
            process.terminate()
            assert process.wait(timeout=10) == 0
        assert process.stderr.read() == ""
