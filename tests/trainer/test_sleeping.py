"""Two engines of a run, really: they sleep while the learner computes, and what becomes of requests and deaths then."""

import os
import signal
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest
from msgspec.structs import replace

from moonmill.config import Config
from moonmill.types import Completion
from tests.trainer.test_engine_host import anyio_backend, ask, config, host_of, served, until, weights

__all__ = ["anyio_backend", "config", "served", "weights"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def sleepy(config: Config) -> Config:
    return replace(config, engine=replace(config.engine, sleep_while_learning=True))


async def asleep(urls: list[str]) -> set[bool]:
    async with httpx.AsyncClient() as http:
        return {(await http.get(f"{url}/is_sleeping")).json()["is_sleeping"] for url in urls}


async def test_requests_and_versions_wait_until_all_are_awake(
    sleepy: Config,
    weights: list[tuple[Path, float]],
    tmp_path: Path,
) -> None:
    async with host_of(sleepy, tmp_path) as (host, told):
        urls = [data["url"] for data in told.of("engine_started")]
        expected = await ask(host)
        done: list[Completion] = []

        async def some() -> None:
            done.append(await ask(host))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(some)
            await until(lambda: any(run.tokens for run in host.client._running))
            async with host.asleep():
                assert await asleep(urls) == {True}
                tasks.start_soon(some)
                tasks.start_soon(partial(host.publish, 1, weights[1][0], changed=True, probe=weights[1][1]))
                async with host.asleep():
                    await anyio.sleep(0.3)
                assert await asleep(urls) == {True}
                assert not done
                assert not told.of("version_published")
        assert await asleep(urls) == {False}
        assert host.client.version == 1
        # What was begun under version 0 goes on under 1, with the tokens it had.
        assert [len(completion.tokens) for completion in done] == [len(expected.tokens)] * 2
        slept = told.of("engine_slept")
        assert len(slept) == 1
        assert slept[0]["seconds"] >= 0.3
        assert {"publish_failed", "engine_died"}.isdisjoint(kind for kind, _ in told)


async def test_one_that_dies_asleep_is_started_again_when_the_learner_is_done(sleepy: Config, tmp_path: Path) -> None:
    async with host_of(sleepy, tmp_path) as (host, told):
        pids = [data["pid"] for data in told.of("engine_started")]
        async with host.asleep():
            os.kill(pids[0], signal.SIGKILL)
            await told.until("engine_died")
            await anyio.sleep(2)  # far longer than it waits for its start
            alive = [e._server.pid for e in host._endpoints if e._server and e._server.alive]
            assert alive == pids[1:], "nothing is started beside the learner"
        assert len((await ask(host)).tokens) == 100
        await told.until("engine_restarted")
        async with host.asleep():
            await anyio.sleep(0.1)
        assert [len(told.of(kind)) for kind in ("engine_slept", "engine_died")] == [2, 1]


async def test_one_that_does_not_sleep_is_ended_and_the_learner_has_its_card(
    sleepy: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(sleepy, engine=replace(sleepy.engine, replicas=1))
    async with host_of(one, tmp_path) as (host, told):
        pid = told.of("engine_started")[0]["pid"]
        monkeypatch.setattr("moonmill.agents.control._SLEEP", "/nowhere")
        async with host.asleep():
            died = await told.until("engine_died")
            assert "did not go to sleep: POST /nowhere: Not Found" in died["error"]
            await until(lambda: not Path(f"/proc/{pid}").exists())
        assert len((await ask(host)).tokens) == 100
        await told.until("engine_restarted")
