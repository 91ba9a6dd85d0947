"""The learner as a real process: steps in turn, weights before answers, errors in words, bit-exact after a crash."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import msgspec
import pytest
import torch
from msgspec.structs import replace

from moonmill.agents.processes import ServerProcess
from moonmill.algorithm_config import CriticConfig
from moonmill.config import Config, EngineConfig, LoraConfig
from moonmill.errors import RunError, WorkerDiedError
from moonmill.rundir import RunDirectory
from moonmill.trainer.checkpoint import latest
from moonmill.trainer.learner import Learner
from moonmill.trainer.learner_client import LearnerClient
from moonmill.trainer.learner_server import make_app
from moonmill.trainer.messages import ErrorAnswer, LearnerState
from tests.trainer.conftest import MakeConfig, action, config_of, observation, rollout, sampled

TIMEOUT = 60.0
PROBE = (3, 1, 4, 1, 5)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def command(config: Config, run_dir: Path, *more: str) -> list[str]:
    RunDirectory.create(run_dir, config).unlock()
    file = run_dir / "learner.json"
    file.write_bytes(msgspec.json.encode(config))
    argv = [sys.executable, "-m", "moonmill.trainer.learner_server", "--config", str(file)]
    return [*argv, "--run-dir", str(run_dir), "--port", "0", *more]


@asynccontextmanager
async def serving(config: Config, run_dir: Path) -> AsyncIterator[tuple[ServerProcess, LearnerClient]]:
    argv = command(config, run_dir, "--exit-with-stdin")
    async with ServerProcess("learner", argv, log_path=run_dir / "learner.log", start_timeout=TIMEOUT) as server:
        client = LearnerClient(server.base_url, timeout=TIMEOUT)
        try:
            yield server, client
        finally:
            await client.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("sleeps", [True, False])
async def test_an_engine_that_wakes_up_finds_what_the_learner_has_used_for_a_while(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeps: bool
) -> None:
    freed: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    config = replace(make_config(), engine=EngineConfig(sleep_while_learning=sleeps))
    learner: Any = SimpleNamespace(step_number=3, version=2)
    transport = httpx.ASGITransport(make_app(learner, RunDirectory(tmp_path), config))
    async with httpx.AsyncClient(transport=transport, base_url="http://learner") as http:
        answer = await http.get("/state")
    assert msgspec.msgpack.decode(answer.content, type=LearnerState) == LearnerState(3, 2)
    assert len(freed) == sleeps


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("lora", "file"),
    [(None, "model.safetensors"), (LoraConfig(r=4), "adapter_model.safetensors")],
    ids=["full", "lora"],
)
async def test_a_run_through_a_crash(
    make_config: MakeConfig, model_path: Path, tmp_path: Path, lora: LoraConfig | None, file: str
):
    """Warm-up, a version, a checkpoint, kill -9, restore, and the lost step done again: the same weights to the bit."""
    config = make_config(critic=CriticConfig(lr=1e-2, warmup_steps=1), lora=lora)
    batches = [sampled(model_path, seed) for seed in range(3)]
    async with serving(config, tmp_path) as (server, client):
        assert await client.state() == LearnerState(0, 0)
        warm_up = await client.step(1, batches[0])
        assert (warm_up.step, warm_up.version, warm_up.weights) == (1, 0, None)

        first = await client.step(2, batches[1], PROBE)
        weights = Path(first.weights or "")
        assert (first.step, first.version, weights) == (2, 1, tmp_path / "weights" / "v000001")
        assert (weights / file).is_file()
        assert first.metrics["mismatch_max"] < 1e-5
        assert first.metrics["seconds_export"] > 0
        assert first.probe is not None
        assert first.probe == await client.probe(PROBE)

        path = await client.checkpoint()
        assert path == tmp_path / "checkpoints" / "step-000002" == latest(tmp_path)

        lost = await client.step(3, batches[2], PROBE)
        assert lost.probe != first.probe
        before = (Path(lost.weights or "") / file).read_bytes()

        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="cannot be reached for /step"):
            await client.step(4, batches[0])

        (weights / file).unlink()  # A power loss may have kept it from the disk.
        await server.restart()
        again = LearnerClient(server.base_url, timeout=TIMEOUT)
        assert await again.restore(path) == LearnerState(2, 1)
        assert (weights / file).is_file()
        assert await again.probe(PROBE) == first.probe
        repeated = await again.step(3, batches[2])
        assert (repeated.probe, await again.probe(PROBE)) == (None, lost.probe)
        assert (Path(repeated.weights or "") / file).read_bytes() == before
        assert repeated.metrics["policy_loss"] == lost.metrics["policy_loss"]
        await _fall_back(again, path, (weights / file).read_bytes(), first.probe)
        await again.aclose()

    # Another process, another machine state: the same bits as here.
    local = Learner(config)
    for batch in batches:
        local.step(batch)
    local.export(tmp_path / "local")
    assert (tmp_path / "local" / file).read_bytes() == before


async def _fall_back(client: LearnerClient, checkpoint: Path, weights: bytes, probe: float) -> None:
    """What a checkpoint holds, as a version of its own."""
    await client.restore(checkpoint)
    back = await client.fall_back(4, 3, 0.5, PROBE)
    assert (back.step, back.version, back.probe) == (4, 3, probe)
    folder = Path(back.weights or "")
    assert folder.name == "v000003"
    assert weights in [(folder / name).read_bytes() for name in os.listdir(folder)]
    assert await client.state() == LearnerState(4, 3)


@pytest.mark.anyio
async def test_a_run_that_took_the_folders_place_is_left_alone(
    make_config: MakeConfig, model_path: Path, tmp_path: Path
):
    path = tmp_path / "run"
    async with serving(make_config(), path) as (_, client):
        shutil.rmtree(path)
        RunDirectory.create(path, make_config()).unlock()
        before = sorted(path.rglob("*"))
        for ask in (client.checkpoint(), client.step(1, sampled(model_path, 0))):
            with pytest.raises(RunError, match="was removed, moved or replaced"):
                await ask
        assert sorted(path.rglob("*")) == before


@pytest.fixture(scope="module")
def shared(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a learner whose steps are value updates, many of them."""
    run_dir = tmp_path_factory.mktemp("run")
    config = config_of(model_path, critic=CriticConfig(lr=1e-3, updates=8, warmup_steps=99))
    argv = command(config, run_dir, "--exit-with-stdin")
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{msgspec.json.decode(process.stdout.readline())['ready']['port']}"
    process.communicate(timeout=TIMEOUT)


@pytest.fixture
async def client(shared: str) -> AsyncIterator[LearnerClient]:
    client = LearnerClient(shared, timeout=TIMEOUT)
    yield client
    await client.aclose()


@pytest.mark.anyio
async def test_only_the_next_step_is_done(client: LearnerClient, model_path: Path):
    batch = sampled(model_path, 0, 2)
    done = (await client.state()).step
    with pytest.raises(RunError, match=f"step {done + 2} was asked for, but {done} steps are done"):
        await client.step(done + 2, batch)
    await client.step(done + 1, batch)
    with pytest.raises(RunError, match=f"but {done + 1} steps are done: only step {done + 2} can be next"):
        await client.step(done + 1, batch)
    assert (await client.state()).step == done + 1


@pytest.mark.anyio
async def test_what_it_refuses_is_told_and_leaves_it_as_it_was(client: LearnerClient, model_path: Path):
    before = await client.state()
    with pytest.raises(RunError, match=r"^the learner: rollout bad has no action tokens"):
        await client.step(before.step + 1, (rollout(observation(1), id="bad"),))
    assert await client.state() == before
    await client.step(before.step + 1, sampled(model_path, 0, 2))


@pytest.mark.anyio
async def test_what_failed_is_told_where_the_log_cannot_be_written(make_config: MakeConfig, tmp_path: Path):
    log = tmp_path / "full.log"
    log.symlink_to("/dev/full")
    argv = command(make_config(), tmp_path, "--exit-with-stdin")
    async with ServerProcess("learner", argv, log_path=log, start_timeout=TIMEOUT) as server:
        client = LearnerClient(server.base_url, timeout=TIMEOUT)
        with pytest.raises(RunError, match=r"failed at /step: IndexError: .* \(its log tells more\)"):
            await client.step(1, (rollout(observation(1), action(10**6)),))
        await client.aclose()


@pytest.mark.anyio
async def test_errors_are_json_with_a_status(shared: str):
    async with httpx.AsyncClient(base_url=shared) as http:
        garbled = await http.post("/step", content=b"\xc1")
        early = await http.post("/step", content=msgspec.msgpack.encode({"step": 50, "rollouts": []}))
    assert garbled.status_code == 400
    assert "cannot be read" in msgspec.json.decode(garbled.content, type=ErrorAnswer).error
    assert early.status_code == 409
    assert msgspec.json.decode(early.content, type=ErrorAnswer).kind == "RunError"


@pytest.mark.anyio
async def test_health_is_answered_in_the_middle_of_a_step(client: LearnerClient, shared: str, model_path: Path):
    batch = sampled(model_path, 0, 8) * 60
    step = (await client.state()).step + 1
    answered = 0
    async with httpx.AsyncClient(base_url=shared) as http, anyio.create_task_group() as group:
        done = anyio.Event()

        async def work() -> None:
            await client.step(step, batch)
            done.set()

        group.start_soon(work)
        await anyio.sleep(0.1)
        while not done.is_set():
            assert (await http.get("/health", timeout=5)).status_code == 200
            answered += not done.is_set()
            await anyio.sleep(0.02)
    assert answered > 3


@pytest.mark.anyio
async def test_a_learner_that_takes_too_long_counts_as_dead(client: LearnerClient, shared: str, model_path: Path):
    step = (await client.state()).step + 1
    hasty = LearnerClient(shared, timeout=0.001)
    with pytest.raises(WorkerDiedError, match=r"did not answer /step in 0\.001 s"):
        await hasty.step(step, sampled(model_path, 0, 8))
    await hasty.aclose()


def test_it_ends_when_its_stdin_closes_even_while_it_starts(make_config: MakeConfig, tmp_path: Path):
    process = subprocess.Popen(command(make_config(), tmp_path, "--exit-with-stdin"), stdin=subprocess.PIPE)
    process.communicate(timeout=10)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "--config: cannot read {file}: No such file or directory"),
        (b"{", "--config: {file} is no config"),
        (b'{"env": {"id": "e"}, "model": {"path": "./gone"}}', "model.path: there is no folder ./gone"),
    ],
    ids=["missing", "garbled", "no model"],
)
def test_what_it_cannot_start_with_is_told_in_a_line(tmp_path: Path, text: bytes | None, words: str):
    (tmp_path / "lock").touch()
    file = tmp_path / "learner.json"
    if text is not None:
        file.write_bytes(text)
    argv = [sys.executable, "-m", "moonmill.trainer.learner_server", "--config", str(file), "--run-dir", str(tmp_path)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.strip().splitlines()[-1].startswith("error: " + words.format(file=file))
    assert ended.stdout == ""
