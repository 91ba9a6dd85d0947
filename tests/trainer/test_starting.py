"""In which order the processes of a run are started, and what the learner's allocator is told."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest

from moonmill.config import AsyncConfig, Config, EngineConfig, EnvConfig, LearnerConfig, ModelConfig
from moonmill.trainer import learner_server, run

CUDA = ModelConfig("/models/m", device="cuda")
CPU = ModelConfig("/models/m")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("model", "engine", "learner", "after"),
    [
        pytest.param(CUDA, EngineConfig(), LearnerConfig(), True, id="one card"),
        pytest.param(CUDA, EngineConfig(devices=("cuda:1",)), LearnerConfig(), False, id="two cards"),
        pytest.param(CUDA, EngineConfig(urls=("http://a:1",)), LearnerConfig(), False, id="attached"),
        pytest.param(CPU, EngineConfig(), LearnerConfig(), False, id="cpu"),
        pytest.param(CPU, EngineConfig(sleep_while_learning=True), LearnerConfig(), True, id="cpu, in turns"),
    ],
)
async def test_on_a_shared_card_the_learner_begins_when_the_engine_is_ready(
    monkeypatch: pytest.MonkeyPatch, model: ModelConfig, engine: EngineConfig, learner: LearnerConfig, after: bool
) -> None:
    config = Config(EnvConfig("calculator-v0"), model, engine=engine, learner=learner, async_=AsyncConfig(mode="sync"))
    told: list[str] = []

    class Engine:
        asleep = None

        def __init__(self, *args: object) -> None:
            pass

        @asynccontextmanager
        async def running(self) -> AsyncIterator[None]:
            await anyio.sleep(0.05)
            told.append("engine ready")
            yield

    class Learner(Engine):
        @asynccontextmanager
        async def running(self) -> AsyncIterator[None]:
            told.append("learner begins")
            yield

    async def train(engine: object, learner: object, ready: anyio.Event, *more: object) -> None:
        await ready.wait()
        told.append("training")

    async def task(index: int) -> Any:
        return SimpleNamespace(messages=lambda: ())

    monkeypatch.setattr(run, "EngineHost", Engine)
    monkeypatch.setattr(run, "LearnerHost", Learner)
    nothing: Any = SimpleNamespace(logs=None, phase=lambda text: None)
    job = run._Run(config, nothing, nothing, nothing, nothing)
    job.renderer = cast(Any, SimpleNamespace(prompt=lambda messages: [1, 2]))
    monkeypatch.setattr(job, "_evaluate_and_train", train)
    await job._start(cast(Any, SimpleNamespace(task=task)), cast(Any, SimpleNamespace(step=0, pending=())))
    order = ["engine ready", "learner begins"]
    assert told == [*(order if after else reversed(order)), "training"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, None),
    ],
    ids=["nothing", "its name", "the name it has had"],
)
def test_the_learners_allocator_grows_its_blocks_unless_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], told: str | None
) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")} | given
    monkeypatch.setattr(os, "environ", environ)
    file = tmp_path / "learner.json"
    file.write_bytes(msgspec.json.encode(Config(EnvConfig("calculator-v0"), CPU)))
    with pytest.raises(SystemExit):  # there is no such run, which is seen after the environment is set, before torch
        learner_server.main(["--config", str(file), "--run-dir", str(tmp_path / "none"), "--port", "0"])
    assert environ.get("PYTORCH_ALLOC_CONF") == told
