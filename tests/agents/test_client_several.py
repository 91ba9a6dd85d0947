"""One client and several real engines: load spread, conversations kept together, engines that stop and die."""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from moonmill.agents.client import InferenceClient
from moonmill.agents.control import EngineControl
from moonmill.agents.processes import ServerProcess
from moonmill.errors import EngineError
from moonmill.types import Completion, Sampling

from .conftest import IDS, engine_argv
from .test_client import arrived, error, events, faulty_engine, until

pytestmark = pytest.mark.anyio

PROMPT = [IDS[c] for c in "hello"]
GREEDY = Sampling(temperature=0.0, max_tokens=100)

Two = tuple[ServerProcess, ServerProcess]


@pytest.fixture(scope="module")
def two(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    logs = tmp_path_factory.mktemp("engines")
    argv = engine_argv(model_dir, "--max-batch", "16", "--stream-interval", "1")
    with start_blocking_portal() as portal, ExitStack() as stack:
        first, second = (
            stack.enter_context(
                portal.wrap_async_context_manager(
                    ServerProcess(name, argv, log_path=logs / f"{name}.log", start_timeout=120)
                )
            )
            for name in ("first", "second")
        )
        yield first, second


@pytest.fixture
async def client(two: Two) -> AsyncIterator[InferenceClient]:
    async with InferenceClient([e.base_url for e in two], recover_timeout=20) as client:
        yield client


def requests_of(engine: ServerProcess) -> int:
    """How many completions an engine was ever asked for."""
    text = httpx.get(f"{engine.base_url}/metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith("moonmill_requests_total")]
    return int(line.split()[1])


async def ask(client: InferenceClient, sampling: Sampling = GREEDY, seed: int = 0, session: str = "") -> Completion:
    return await client.complete(PROMPT, sampling, seed=seed, stop_token_ids=(), session=session)


async def test_both_serve_half(client: InferenceClient, two: Two) -> None:
    before = [requests_of(e) for e in two]
    async with anyio.create_task_group() as tasks:
        for seed in range(40):
            tasks.start_soon(ask, client, Sampling(max_tokens=8), seed)
    assert [requests_of(e) - n for e, n in zip(two, before, strict=True)] == [20, 20]


async def test_a_conversation_stays_on_its_engine(client: InferenceClient, two: Two) -> None:
    before = [requests_of(e) for e in two]
    for turn in range(3):
        for _ in range(turn):
            await ask(client, Sampling(max_tokens=1))  # others take turns in between
        await ask(client, Sampling(max_tokens=1), session="one")
    homes = Counter(client._router._homes.values())
    assert homes.total() == 1
    assert sum(requests_of(e) for e in two) - sum(before) == 6


async def test_those_of_an_engine_out_of_use_go_on_elsewhere_from_their_tokens(
    client: InferenceClient, two: Two
) -> None:
    undisturbed = await ask(client)
    results: list[Completion] = []

    async def run() -> None:
        results.append(await ask(client))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(run)
        await until(lambda: arrived(client) >= 80)
        os.kill(two[0].pid, signal.SIGSTOP)
        try:
            await until(lambda: len(results) == 4, 30)
            assert client.in_flight()[0] == 4, "the rest waits at an engine that says nothing"
            client.set_away(0)
            await until(lambda: len(results) == 8, 30)
        finally:
            os.kill(two[0].pid, signal.SIGCONT)
    assert {r.tokens for r in results} == {undisturbed.tokens}
    client.set_base_url(two[0].base_url, 0)
    assert (await ask(client)).tokens == undisturbed.tokens


async def test_what_an_engine_says_nothing_to_is_completed_by_another(two: Two) -> None:
    async with InferenceClient([e.base_url for e in two], request_timeout=1, recover_timeout=5) as client:
        os.kill(two[1].pid, signal.SIGSTOP)
        try:
            done = [await ask(client, Sampling(temperature=0.0, max_tokens=4)) for _ in range(4)]
        finally:
            os.kill(two[1].pid, signal.SIGCONT)
        assert len({c.tokens for c in done}) == 1


async def test_a_version_that_one_of_them_lacks_is_had_from_the_other(
    client: InferenceClient, two: Two, other_dir: Path
) -> None:
    async with EngineControl(two[1].base_url) as control:
        await control.load_version(3, other_dir)
        await client.use_version(3)
        with anyio.fail_after(10):
            done = [await ask(client, Sampling(max_tokens=2), seed) for seed in range(6)]
        await control.unload_version(3)
    assert {v for c in done for v in c.versions} == {3}


async def test_one_that_is_killed_under_many_completions_loses_none(
    model_dir: Path, other_dir: Path, two: Two, tmp_path: Path
) -> None:
    argv = engine_argv(model_dir, "--max-batch", "16", "--stream-interval", "1")
    async with (
        ServerProcess("third", argv, log_path=tmp_path / "third.log", start_timeout=120) as third,
        InferenceClient([two[0].base_url, third.base_url], recover_timeout=20) as client,
        EngineControl(two[0].base_url) as control,
    ):
        undisturbed = await ask(client)
        await control.load_version(1, other_dir)  # now, for on a busy machine it takes longer than all completions
        results: list[Completion] = []

        async def run() -> None:
            results.append(await ask(client))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(run)
            await until(lambda: arrived(client) >= 80, 30)
            os.kill(third.pid, signal.SIGKILL)
            await client.use_version(1)
            await until(lambda: len(results) == 8, 60)
        await control.unload_version(1)
    for done in results:
        switch = done.versions.index(1)
        assert done.versions == (0,) * switch + (1,) * (100 - switch)
        assert done.tokens[:switch] == undisturbed.tokens[:switch]


async def test_completions_wait_while_all_are_out_of_use(client: InferenceClient, two: Two) -> None:
    results: list[Completion] = []

    async def run() -> None:
        results.append(await ask(client))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(run)
        await until(lambda: arrived(client) >= 20)
        client.set_away(0)
        client.set_away(1)
        await anyio.sleep(0.5)
        assert not results
        client.set_base_url(two[1].base_url, 1)
    assert len({r.tokens for r in results}) == 1


async def test_where_none_is_up_the_wait_is_bounded_and_told(two: Two) -> None:
    async with InferenceClient([e.base_url for e in two], recover_timeout=0.5) as client:
        client.set_away(0)
        client.set_away(1)
        with anyio.fail_after(10), pytest.raises(EngineError, match=r"no engine was up for 0\.5 s"):
            await ask(client)


async def test_an_error_names_the_engine_and_each_is_tried_in_a_round() -> None:
    async with (
        faulty_engine(error(500, "cannot")) as (one, seen_by_one),
        faulty_engine(error(500, "neither")) as (other, seen_by_other),
        InferenceClient([one, other], max_attempts=2) as client,
    ):
        with pytest.raises(EngineError, match=rf"^({one}|{other}) did not complete .* in 4 attempts"):
            await ask(client)
        assert (len(seen_by_one), len(seen_by_other)) == (2, 2)


async def test_what_one_fails_another_completes_at_once() -> None:
    broken = events(11) + b'data: {"error": {"message": "lost the device"}}\n\n'
    async with (
        faulty_engine(broken) as (one, _),
        faulty_engine(events(12, finish='"stop"')) as (other, seen),
        InferenceClient([one, other]) as client,
    ):
        done = await client.complete([1], Sampling(max_tokens=9), seed=5, stop_token_ids=())
    assert done.tokens == (11, 12)
    assert b'"prompt":[1,11],"max_tokens":8' in seen[0]
