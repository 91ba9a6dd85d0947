"""Two engines of a run, really: hand-overs, engines that die, hang, come back, or have the wrong weights."""

import json
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from moonmill.agents.control import EngineControl
from moonmill.agents.processes import ServerProcess
from moonmill.config import Config, EngineConfig, EnvConfig, ModelConfig
from moonmill.errors import ConfigError, EngineError, WorkerDiedError
from moonmill.rundir import RunDirectory
from moonmill.trainer import endpoints
from moonmill.trainer.engine_commands import engine_argv
from moonmill.trainer.engine_host import EngineHost
from moonmill.trainer.models import load_policy
from moonmill.trainer.probing import likeliest_logprob
from moonmill.trainer.weights import load_tensors, own_tensors
from moonmill.types import Completion, Sampling

pytestmark = pytest.mark.anyio

PROBE = [3, 1, 4, 1, 5]
Events = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _quick_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_HEALTH_SECONDS", 0.5)
    monkeypatch.setattr(endpoints, "_PASSED_OVER_SECONDS", 2.0)
    monkeypatch.setattr(endpoints, "_STUCK_SECONDS", 10.0)


@pytest.fixture(scope="module")
def served(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without its tokenizer, which is none, and without an end, so that all completions are whole."""
    left_out = ("tokenizer.json", "generation_config.json")
    folder = shutil.copytree(model_path, tmp_path_factory.mktemp("served") / "model", ignore=lambda *_: left_out)
    described = json.loads((folder / "config.json").read_text()) | {"eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def config(served: Path) -> Config:
    return Config(
        env=EnvConfig("test-v0"),
        model=ModelConfig(str(served), max_length=128),
        engine=EngineConfig(replicas=2, max_batch=8),
    )


@pytest.fixture(scope="module")
def weights(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, float]]:
    """Folders with the weights of versions 0, 1, 2, ..., and what the learner answers to the probe with them."""
    made = []
    folder = tmp_path_factory.mktemp("weights")
    model = ModelConfig(str(model_path))
    policy = load_policy(Config(EnvConfig("test-v0"), model))
    for version in range(5):
        tensors = load_file(model_path / "model.safetensors")
        draw = torch.Generator().manual_seed(version)
        for tensor in tensors.values():
            tensor += 0.05 * version * torch.randn(tensor.shape, generator=draw)
        path = folder / f"v{version:06d}"
        path.mkdir()
        save_file(tensors, path / "model.safetensors")
        load_tensors(own_tensors(policy), path / "model.safetensors")
        made.append((path, likeliest_logprob(policy, PROBE, model)))
    return made


class Told(Events):
    """What a host told of, to be waited for."""

    def __call__(self, kind: str, **data: object) -> None:
        self.append((kind, data))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [data for k, data in self if k == kind]

    async def until(self, kind: str, count: int = 1, seconds: float = 120) -> dict[str, Any]:
        await until(lambda: len(self.of(kind)) >= count, seconds)
        return self.of(kind)[-1]


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  # what is waited for is in other processes
            await anyio.sleep(0.02)


@asynccontextmanager
async def host_of(config: Config, folder: Path) -> AsyncIterator[tuple[EngineHost, Told]]:
    told = Told()
    async with EngineHost(config, folder, told, PROBE, None).running() as host:
        yield host, told


async def ask(host: EngineHost, tokens: int = 100, seed: int = 0) -> Completion:
    return await host.client.complete([1, 2, 3], Sampling(0.0, max_tokens=tokens), seed=seed, stop_token_ids=())


async def ask_all(host: EngineHost) -> set[int]:
    """The versions that the engines answer with, each asked."""
    return {v for _ in range(4) for v in (await ask(host, 1)).versions}


async def test_versions_reach_both_and_one_killed_comes_back_with_the_current(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path
) -> None:
    async with host_of(config, tmp_path) as (host, told):
        pids = [data["pid"] for data in told.of("engine_started")]
        assert {data["engine"] for data in told.of("engine_started")} == {"engine-1", "engine-2"}
        await host.publish(1, weights[1][0], changed=True, probe=weights[1][1])
        published = await told.until("version_published")
        assert published["probe_difference"] < 1e-5
        assert published["seconds_load"] + published["seconds_probe"] <= published["seconds"]
        done: list[Completion] = []

        async def some(seed: int) -> None:
            # On and on: a hundred tokens may be there before the next version is.
            while not any(2 in completion.versions for completion in done):
                done.append(await ask(host, seed=seed))

        async with anyio.create_task_group() as tasks:
            for seed in range(8):
                tasks.start_soon(some, seed)
            await until(lambda: sum(len(r.tokens) for r in host.client._running) >= 64)
            os.kill(pids[0], signal.SIGKILL)
            await told.until("engine_died")
            # Nobody waits for the dead one.
            with anyio.fail_after(30):
                await host.publish(2, weights[2][0], changed=True, probe=weights[2][1])
            assert not told.of("engine_restarted")
        for completion in done:
            assert [*completion.versions] == sorted(completion.versions)
            assert len(completion.tokens) == 100
        assert max(v for c in done for v in c.versions) == 2
        back = await told.until("engine_restarted")
        assert back["pid"] not in pids
        assert await ask_all(host) == {2}
        assert all(e.loaded == {2} for e in host._endpoints)
        assert not told.of("publish_failed")


async def test_one_that_hangs_is_passed_over_until_it_answers_and_in_the_end_started_anew(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path
) -> None:
    async with host_of(config, tmp_path) as (host, told):
        first = told.of("engine_started")[0]
        os.kill(first["pid"], signal.SIGSTOP)
        with anyio.fail_after(60):
            await host.publish(1, weights[1][0], changed=True, probe=weights[1][1])
            assert await ask_all(host) == {1}
        assert told.of("engine_passed_over")[0]["engine"] == first["engine"]
        os.kill(first["pid"], signal.SIGCONT)
        assert (await told.until("engine_back"))["engine"] == first["engine"]
        assert all(e.up and e.loaded == {1} for e in host._endpoints)
        assert not told.of("engine_died")

        os.kill(first["pid"], signal.SIGSTOP)
        died = await told.until("engine_died")
        assert "it runs, but did not answer for" in died["error"]
        assert (await told.until("engine_restarted"))["engine"] == first["engine"]
        assert all(e.up and e.loaded == {1} for e in host._endpoints)


async def test_what_they_were_started_with_is_compared_without_waiting_for_one_that_hangs(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path
) -> None:
    async with host_of(config, tmp_path) as (host, told):
        with pytest.raises(EngineError, match=r"does not sample from the model that is trained, .*Either it serves"):
            await host.compare(weights[1][1])
        assert not told.of("publish_failed"), "it will have no other"
        first = told.of("engine_started")[0]
        os.kill(first["pid"], signal.SIGSTOP)
        with anyio.fail_after(60):
            await host.compare(weights[0][1])
        assert told.of("engine_passed_over")[0]["engine"] == first["engine"]
        os.kill(first["pid"], signal.SIGCONT)
        assert (await told.until("engine_back"))["engine"] == first["engine"]
        assert all(e.up and e.loaded == {0} for e in host._endpoints), "it was asked when it came back"
        assert await ask_all(host) == {0}


async def test_an_attached_engine_with_another_model_than_the_others_is_passed_over(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path
) -> None:
    other = replace(config, model=replace(config.model, path=str(shutil.copytree(config.model.path, tmp_path / "m"))))
    shutil.copy(weights[1][0] / "model.safetensors", tmp_path / "m")
    async with (
        running(config, tmp_path, 1) as (right,),
        running(other, tmp_path / "m", 1) as (wrong,),
        host_of(attached(config, [right, wrong]), tmp_path) as (host, told),
    ):
        await host.compare(weights[0][1])
        assert "does not sample from the model that is trained" in (await told.until("engine_passed_over"))["error"]
        assert [e.up for e in host._endpoints] == [True, False]
        # It is asked again whenever it might be used.
        assert "does not sample from the model" in (await told.until("restart_failed"))["error"]
        assert await ask_all(host) == {0}


async def test_weights_that_are_not_the_learners_are_an_error_with_both_numbers(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path
) -> None:
    one = replace(config, engine=replace(config.engine, replicas=1))
    async with host_of(one, tmp_path) as (host, told):
        with pytest.raises(EngineError, match="did not take version 1 in 3 attempts") as raised:
            await host.publish(1, weights[2][0], changed=True, probe=weights[1][1])
        numbers = re.search(r"log-probability (-[\d.]+), with the learner (-[\d.]+);", str(raised.value))
        assert numbers
        assert [*map(float, numbers.groups())] == pytest.approx([weights[2][1], weights[1][1]], abs=1e-4)
        assert len(told.of("engine_restarted")) == 1, "before the last attempt"
        assert await ask_all(host) == {0}
        await host.publish(1, weights[1][0], changed=True, probe=weights[1][1])
        assert await ask_all(host) == {1}


async def test_one_that_alone_has_wrong_weights_is_started_anew(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host_of(config, tmp_path) as (host, told):
        control = host._endpoints[1]._control
        load = control.load_version

        async def load_another(version: int, path: Path) -> None:
            monkeypatch.setattr(control, "load_version", load)
            await load(version, weights[4][0])

        monkeypatch.setattr(control, "load_version", load_another)
        await host.publish(1, weights[1][0], changed=True, probe=weights[1][1])
        assert await ask_all(host) == {1}
        assert "does not sample from the weights that the learner made" in (await told.until("engine_died"))["error"]
        assert (await told.until("engine_restarted"))["engine"] == "engine-2"
        assert all(e.loaded == {1} for e in host._endpoints)


async def test_a_run_goes_on_with_the_last_engine_and_ends_without_one(config: Config, tmp_path: Path) -> None:
    no_restarts = replace(config, engine=replace(config.engine, max_restarts=0))

    async def kill_one_after_the_other() -> None:
        async with host_of(no_restarts, tmp_path) as (host, told):
            first, second = (data["pid"] for data in told.of("engine_started"))
            os.kill(first, signal.SIGKILL)
            await told.until("engine_given_up")
            assert await ask_all(host) == {0}
            os.kill(second, signal.SIGKILL)
            await anyio.sleep(30)

    with pytest.raises(ExceptionGroup) as raised:
        await kill_one_after_the_other()
    assert "no engine may be started again" in str(first_of(raised.value))


async def test_one_that_does_not_start_ends_the_others(config: Config, tmp_path: Path) -> None:
    """Their ports follow one another, and the second is taken."""
    async with ServerProcess("blocker", taker(), log_path=tmp_path / "b.log", start_timeout=60) as blocker:
        port = int(blocker.ready["port"]) - 1
        taken = replace(config, engine=replace(config.engine, port=port))
        with pytest.raises(ExceptionGroup) as raised:
            async with host_of(taken, tmp_path):
                pass
    assert isinstance(first_of(raised.value), ConfigError)
    assert f"cannot listen on 127.0.0.1:{port + 1}" in str(first_of(raised.value))


def taker() -> list[str]:
    code = "from moonmill.agents.serving import *; s = listen('127.0.0.1', 0); "
    code += "announce_ready({'port': s.getsockname()[1]}); die_with_stdin(); import time; time.sleep(600)"
    return [sys.executable, "-c", code]


def first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def running(config: Config, folder: Path, count: int) -> AsyncIterator[list[ServerProcess]]:
    """Engines that somebody else has started, at ports that stay."""
    own = replace(config, engine=replace(config.engine, replicas=1))
    async with AsyncExitStack() as stack:
        started: list[ServerProcess] = []
        for number in range(count):
            log = folder / f"other-{number}.log"
            process = ServerProcess(f"other {number}", engine_argv(own), log_path=log, start_timeout=120)
            started.append(await stack.enter_async_context(process))
            process._argv[process._argv.index("--port") + 1] = str(process.ready["port"])
        yield started


def attached(config: Config, processes: list[ServerProcess], **more: Any) -> Config:
    urls = tuple(p.base_url for p in processes)
    return replace(config, engine=replace(config.engine, replicas=1, urls=urls, **more))


async def test_attached_engines_are_used_and_get_the_versions_again_when_they_come_back(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path
) -> None:
    async with running(config, tmp_path, 2) as processes:
        async with host_of(attached(config, processes), tmp_path) as (host, told):
            assert {data["url"] for data in told.of("engine_started")} == {p.base_url for p in processes}
            await host.publish(1, weights[1][0], changed=True, probe=weights[1][1])
            processes[1].kill()
            await host.publish(2, weights[2][0], changed=True, probe=weights[2][1])
            assert await ask_all(host) == {2}
            await told.until("engine_passed_over")
            await processes[1].restart()
            assert (await told.until("engine_back"))["engine"] == processes[1].base_url
            assert all(e.up and e.loaded == {2} for e in host._endpoints)
            assert await ask_all(host) == {2}
        assert all(p.alive for p in processes), "they are not ours to stop"
        # Another run finds them with versions of the first.
        async with host_of(attached(config, processes), tmp_path) as (host, told):
            assert await ask_all(host) == {0}
            await host.publish(2, weights[3][0], changed=True, probe=weights[3][1])
            assert not told.of("publish_failed")


async def test_an_attached_engine_is_waited_for_at_a_hand_over_and_given_again_what_it_has_lost(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path
) -> None:
    async with (
        running(config, tmp_path, 1) as (process,),
        host_of(attached(config, [process]), tmp_path) as (host, told),
    ):
        process.kill()
        async with anyio.create_task_group() as tasks:

            async def publish() -> None:
                await host.publish(1, weights[1][0], changed=True, probe=weights[1][1])

            tasks.start_soon(publish)
            await told.until("publish_failed")
            await process.restart()
        assert len(told.of("publish_failed")) == 1
        assert await ask_all(host) == {1}

        async with EngineControl(process.base_url) as somebody_else:
            await somebody_else.unload_version(1)
        assert await ask_all(host) == {1}
        assert "has lost version 1" in told.of("engine_passed_over")[-1]["error"]


async def test_one_that_cannot_be_started_again_is_given_up(config: Config, tmp_path: Path) -> None:
    """Somebody has taken its port meanwhile."""
    free = next(p for p in range(20000, 40000, 7) if not any(map(in_use, (p, p + 1))))
    brief = replace(config, engine=replace(config.engine, port=free, max_restarts=2))
    async with host_of(brief, tmp_path) as (host, told):
        second = next(data for data in told.of("engine_started") if data["engine"] == "engine-2")
        os.kill(second["pid"], signal.SIGKILL)
        await told.until("engine_died")
        with socket.create_server(("127.0.0.1", free + 1)):
            given_up = await told.until("engine_given_up")
        assert given_up["engine"] == "engine-2"
        assert "cannot listen on 127.0.0.1" in told.of("restart_failed")[0]["error"]
        assert await ask_all(host) == {0}


def in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_an_engine_that_another_run_uses_is_left_to_it(
    config: Config, weights: list[tuple[Path, float]], tmp_path: Path
) -> None:
    other = RunDirectory.create(tmp_path / "other", config)
    theirs = shutil.copytree(weights[3][0], other.weights / "v000001")
    async with running(config, tmp_path, 1) as processes, EngineControl(processes[0].base_url) as control:
        await control.load_version(1, theirs)
        with pytest.raises(ExceptionGroup) as raised:
            async with host_of(attached(config, processes), tmp_path):
                pass
        assert f"the run in {other.path} is using {processes[0].base_url} now" in str(first_of(raised.value))
        assert await control.probe(PROBE, 1) == pytest.approx(weights[3][1], abs=1e-4)
        other.unlock()
        # What a run that has ended left there is nobody's.
        async with host_of(attached(config, processes), tmp_path) as (host, _):
            other.lock()
            await control.load_version(1, theirs)
            with pytest.raises(EngineError, match=f"the run in {other.path} is using"):
                await host.publish(1, weights[1][0], changed=True, probe=weights[1][1])
    other.unlock()


async def test_attached_engines_that_cannot_serve_the_run_are_told(config: Config, tmp_path: Path) -> None:
    async with running(config, tmp_path, 1) as processes:
        long = replace(attached(config, processes), model=replace(config.model, max_length=500))
        with pytest.raises(ExceptionGroup) as raised:
            async with host_of(long, tmp_path):
                pass
        assert "model.max_length: 500 is more than the context of 128" in str(first_of(raised.value))
        process = processes[0]
        process._argv[process._argv.index("--served-name") + 1] = "mine"
        await process.restart()
        with pytest.raises(ExceptionGroup) as raised:
            async with host_of(attached(config, processes), tmp_path):
                pass
        assert "serves mine, but nothing under the name policy-v0" in str(first_of(raised.value))


async def test_attached_engines_that_are_not_there_or_go_for_good_end_the_run(config: Config, tmp_path: Path) -> None:
    async with running(config, tmp_path, 1) as processes:
        brief = attached(config, processes, start_timeout=2.0)

        async def lose_it() -> None:
            async with host_of(brief, tmp_path) as (_, told):
                processes[0].kill()
                await told.until("engine_passed_over")
                await anyio.sleep(30)

        with pytest.raises(ExceptionGroup) as raised:
            await lose_it()
        assert "could be used for 4 s" in str(first_of(raised.value))
        told = Told()
        with pytest.raises(ExceptionGroup) as raised:
            async with EngineHost(brief, tmp_path, told, PROBE, None).running():
                pass
        error = first_of(raised.value)
        assert isinstance(error, WorkerDiedError)
        assert "no engine was at http://127.0.0.1" in str(error)
        assert told.of("engine_starting")[0]["text"].startswith("waiting for an engine, 0 s of 2: http://127.0.0.1")


def test_the_learners_answer_is_that_of_transformers(model_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = ModelConfig(str(model_path))
    plain = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    with torch.no_grad():
        expected = plain(torch.tensor([PROBE])).logits[0, -1].log_softmax(-1).max()
    assert likeliest_logprob(load_policy(Config(EnvConfig("test-v0"), model)), PROBE, model) == pytest.approx(
        float(expected), abs=1e-5
    )
