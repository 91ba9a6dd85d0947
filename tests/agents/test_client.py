"""The inference client, against real engines that are interrupted, moved and killed."""

import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from moonmill.agents.client import InferenceClient, version_name
from moonmill.agents.control import EngineControl
from moonmill.agents.processes import ServerProcess
from moonmill.errors import EngineError, PromptTooLongError
from moonmill.types import Completion, Sampling

from .conftest import IDS, MAX_LENGTH, engine_argv

pytestmark = pytest.mark.anyio

PROMPT = [IDS[c] for c in "hello"]
GREEDY = Sampling(temperature=0.0, max_tokens=150)


@pytest.fixture
async def client(engine: ServerProcess) -> AsyncIterator[InferenceClient]:
    async with InferenceClient(engine.base_url) as client:
        yield client


@pytest.fixture
async def control(engine: ServerProcess) -> AsyncIterator[EngineControl]:
    async with EngineControl(engine.base_url) as control:
        yield control


@asynccontextmanager
async def version(control: EngineControl, number: int, folder: Path) -> AsyncIterator[None]:
    """A version that is loaded inside the context."""
    await control.load_version(number, folder)
    try:
        yield
    finally:
        await control.unload_version(number)


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  # what is waited for is inside of the client
            await anyio.sleep(0.001)


def arrived(client: InferenceClient) -> int:
    """Tokens that running completions have got so far."""
    return sum(len(run.tokens) for run in client._running)


async def ask(client: InferenceClient, sampling: Sampling = GREEDY, seed: int = 0) -> Completion:
    return await client.complete(PROMPT, sampling, seed=seed, stop_token_ids=())


async def test_a_completion_has_tokens_logprobs_and_versions(client: InferenceClient) -> None:
    done = await client.complete(PROMPT, Sampling(max_tokens=10), seed=1, stop_token_ids=(), session="s-1")
    assert len(done.tokens) == len(done.logprobs) == 10
    assert done.versions == (0,) * 10
    assert done.finish_reason == "length"
    assert all(v < 0 for v in done.logprobs)


async def test_a_stop_token_ends_it_and_is_part_of_it(client: InferenceClient) -> None:
    free = await ask(client, Sampling(max_tokens=20), seed=1)
    stop = free.tokens[6]
    done = await client.complete(PROMPT, Sampling(max_tokens=20), seed=1, stop_token_ids=(stop,))
    assert done.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert done.finish_reason == "stop"


async def test_a_seed_repeats_a_completion(client: InferenceClient) -> None:
    sampling = Sampling(max_tokens=20)
    one, again, other = [await ask(client, sampling, seed) for seed in (1, 1, 2)]
    assert one == again
    assert one.tokens != other.tokens


async def test_many_completions_at_once(client: InferenceClient) -> None:
    done: dict[int, Completion] = {}

    async def one(seed: int) -> None:
        done[seed] = await ask(client, Sampling(max_tokens=20), seed)

    async with anyio.create_task_group() as tasks:
        for seed in range(20):
            tasks.start_soon(one, seed)
    assert len({c.tokens for c in done.values()}) == 20
    assert done[3].tokens == (await ask(client, Sampling(max_tokens=20), 3)).tokens


async def test_a_prompt_that_does_not_fit_is_not_tried_again(client: InferenceClient) -> None:
    with pytest.raises(PromptTooLongError, match=f"{MAX_LENGTH} tokens"):
        await client.complete([1] * MAX_LENGTH, GREEDY, seed=0, stop_token_ids=())


async def test_what_the_engine_refuses_is_an_error_at_once(client: InferenceClient) -> None:
    with pytest.raises(EngineError, match=r"refused a request: .*token 5000"):
        await client.complete([5000], GREEDY, seed=0, stop_token_ids=())


async def test_a_new_version_interrupts_and_continues(
    client: InferenceClient, control: EngineControl, other_dir: Path
) -> None:
    old = await ask(client)
    async with version(control, 1, other_dir), anyio.create_task_group() as tasks:
        results: list[Completion] = []

        async def run() -> None:
            results.append(await ask(client))

        tasks.start_soon(run)
        await until(lambda: arrived(client) >= 8)
        await client.use_version(1)
        await until(lambda: bool(results))
        done = results[0]
        switch = done.versions.index(1)
        assert switch >= 8
        assert done.versions == (0,) * switch + (1,) * (150 - switch)
        assert done.tokens[:switch] == old.tokens[:switch], "what was sampled is kept"
        rest = await client.complete(
            [*PROMPT, *done.tokens[:switch]],
            Sampling(temperature=0.0, max_tokens=150 - switch),
            seed=0,
            stop_token_ids=(),
        )
        assert done.tokens[switch:] == rest.tokens, "and continued by the new version"
        assert done.logprobs[switch:] == pytest.approx(rest.logprobs, abs=1e-4)


async def test_where_versions_finish_only_new_requests_change(
    engine: ServerProcess, control: EngineControl, other_dir: Path
) -> None:
    async with (
        InferenceClient(engine.base_url, on_new_version="finish") as client,
        version(control, 1, other_dir),
        anyio.create_task_group() as tasks,
    ):
        results: list[Completion] = []

        async def run() -> None:
            results.append(await ask(client))

        tasks.start_soon(run)
        await until(lambda: arrived(client) >= 8)
        await client.use_version(1)
        tasks.start_soon(run)
        await until(lambda: len(results) == 2)
        assert sorted({v for c in results for v in c.versions}) == [0, 1]
        assert all(len(set(c.versions)) == 1 for c in results)


async def test_a_version_unloaded_under_a_request_is_replaced_by_the_current(
    engine: ServerProcess, control: EngineControl, other_dir: Path
) -> None:
    async with InferenceClient(engine.base_url, version=1, on_new_version="finish") as client:
        await control.load_version(1, other_dir)
        async with anyio.create_task_group() as tasks:
            results: list[Completion] = []

            async def run() -> None:
                results.append(await ask(client))

            tasks.start_soon(run)
            await until(lambda: arrived(client) >= 8)
            await client.use_version(0)
            await control.unload_version(1)
            await until(lambda: bool(results))
        versions = results[0].versions
        assert versions == tuple(sorted(versions, reverse=True))
        assert set(versions) == {0, 1}


async def test_a_cancelled_completion_is_aborted_on_the_engine(client: InferenceClient) -> None:
    with anyio.move_on_after(10) as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client)
            await until(lambda: arrived(client) >= 4)
            tasks.cancel_scope.cancel()
    assert not scope.cancelled_caught
    start = time.monotonic()
    await ask(client, Sampling(max_tokens=1))
    assert time.monotonic() - start < 2


async def test_an_engine_killed_under_a_completion_is_waited_for(model_dir: Path, tmp_path: Path) -> None:
    # Chunks of one token, so that the kill finds it in the middle.
    argv = engine_argv(model_dir, "--stream-interval", "1", "--max-batch", "2")
    async with (
        ServerProcess("engine", argv, log_path=tmp_path / "engine.log", start_timeout=120) as process,
        InferenceClient(process.base_url) as client,
        anyio.create_task_group() as tasks,
    ):
        undisturbed = await ask(client)
        results: list[Completion] = []

        async def run() -> None:
            results.append(await ask(client))

        tasks.start_soon(run)
        await until(lambda: arrived(client) >= 5)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait_dead()
        kept = arrived(client)
        await process.restart()
        assert not results
        client.set_base_url(process.base_url)
        await until(lambda: bool(results))
        assert 5 <= kept < 150
        assert results[0].tokens == undisturbed.tokens
        assert results[0].versions == (0,) * 150


async def test_an_engine_that_stays_away_is_an_error(unused_tcp_port: int) -> None:
    async with InferenceClient(f"http://127.0.0.1:{unused_tcp_port}", recover_timeout=0.3) as client:
        with pytest.raises(EngineError, match=rf":{unused_tcp_port} did not complete .* ConnectError"):
            await ask(client)


@asynccontextmanager
async def faulty_engine(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives each request the next answer, in the end always the last. Yields its URL and the requests."""
    seen: list[bytes] = []

    async def handle(stream: SocketStream) -> None:
        async with stream:
            request = await stream.receive()
            answer = answers[min(len(seen), len(answers) - 1)]
            seen.append(request)
            if answer == HANGS:
                await anyio.sleep(5)
            await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}", seen
        tasks.cancel_scope.cancel()


HANGS = b"hangs"


def events(*tokens: int, finish: str = "null") -> bytes:
    """A streamed answer with these tokens."""
    logprobs = ",".join("-1.0" for _ in tokens)
    choice = f'{{"token_ids": {[*tokens]}, "logprobs": {{"token_logprobs": [{logprobs}]}}, "finish_reason": {finish}}}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + f'data: {{"choices": [{choice}]}}\n\n'.encode()


def error(status: int, message: str) -> bytes:
    body = f'{{"error": {{"message": "{message}"}}}}'
    return f"HTTP/1.1 {status} Bad\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda: events(11, 99, finish='"stop"'), "the token 99 arrived, and the run's model has 50 tokens"),
        (lambda: events(11, -1, finish='"stop"'), "the token -1 arrived"),
        (lambda: events(*range(10), finish='"stop"'), "more than the 9 tokens arrived"),
        (lambda: events(11, finish='"stop"').replace(b"-1.0", b"50.0"), "the log-probability 50 arrived"),
        (lambda: events().partition(b"data")[0] + bytes(1 << 25), "a line of more than 16777216 bytes"),
    ],
    ids=["beyond the vocabulary", "negative", "too many", "probability above 1", "endless"],
)
async def test_tokens_that_cannot_be_the_models_are_refused(answer: Callable[[], bytes], why: str) -> None:
    async with faulty_engine(answer()) as (url, _), InferenceClient(url, max_attempts=1, vocabulary=50) as client:
        with pytest.raises(EngineError, match=why):
            await client.complete([1], Sampling(max_tokens=9), seed=5, stop_token_ids=())


async def test_tokens_that_arrived_before_a_failure_are_kept() -> None:
    failing = events(11, 12) + b'data: {"error": {"message": "lost the device"}}\n\n'
    answers = (failing, error(503, "busy"), events(13, finish='"stop"'))
    async with faulty_engine(*answers) as (url, seen), InferenceClient(url) as client:
        done = await client.complete([1, 2], Sampling(max_tokens=9), seed=5, stop_token_ids=())
    assert done == Completion((11, 12, 13), (-1.0,) * 3, (0,) * 3, "stop")
    assert b'"prompt":[1,2],"max_tokens":9' in seen[0]
    assert b'"prompt":[1,2,11,12],"max_tokens":7' in seen[2]
    assert b'"seed":5,' in seen[0]
    assert b'"seed":5,' not in seen[2], "the same random numbers are not drawn twice"


async def test_a_refusal_inside_of_a_stream_is_an_error_at_once() -> None:
    refused = events(11) + b'data: {"error": {"message": "cannot be", "code": 400}}\n\n'
    async with faulty_engine(refused) as (url, seen), InferenceClient(url) as client:
        with pytest.raises(EngineError, match="refused a request: cannot be"):
            await ask(client)
    assert len(seen) == 1


async def test_a_completion_whose_end_was_lost_is_not_sampled_on() -> None:
    async with faulty_engine(events(11, 12)) as (url, seen), InferenceClient(url) as client:
        stopped = await client.complete([1], Sampling(max_tokens=9), seed=5, stop_token_ids=(12,))
        full = await client.complete([1], Sampling(max_tokens=2), seed=5, stop_token_ids=())
    assert (stopped.finish_reason, full.finish_reason) == ("stop", "length")
    assert len(seen) == 2


async def test_a_request_that_keeps_failing_is_an_error_with_the_count() -> None:
    async with faulty_engine(error(500, "cannot")) as (url, seen), InferenceClient(url, max_attempts=3) as client:
        with pytest.raises(EngineError, match=r"policy-v0 in 3 attempts \(0 tokens had arrived\); .*: cannot"):
            await ask(client)
    assert len(seen) == 3


async def test_an_engine_that_says_nothing_is_given_up() -> None:
    async with faulty_engine(HANGS) as (url, _), InferenceClient(url, request_timeout=0.1, max_attempts=2) as client:
        with pytest.raises(EngineError, match=r"in 2 attempts .* ReadTimeout"):
            await ask(client)


async def test_an_answer_that_is_no_completion_is_an_error() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    async with faulty_engine(head + b"data: <html>\n\n") as (url, _), InferenceClient(url, max_attempts=1) as client:
        with pytest.raises(EngineError, match="no completion: b'<html>'"):
            await ask(client)


async def test_a_version_the_engine_has_not_got_yet_is_waited_for() -> None:
    answers = (error(404, "no such model"), events(4, finish='"length"'))
    async with faulty_engine(*answers) as (url, seen), InferenceClient(url, version=7) as client:
        done = await ask(client, Sampling(max_tokens=1))
    assert done.versions == (7,)
    assert len(seen) == 2
    assert version_name(7).encode() in seen[1]
