"""Evaluations beside training: whatever comes of one, the run goes on."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moonmill import MultiTurnEnv, Task
from moonmill.config import Config, EnvConfig, EvalConfig, ModelConfig
from moonmill.errors import RunDirectoryError
from moonmill.jsonl import read_jsonl
from moonmill.reporting import Reporter
from moonmill.rundir import RunDirectory
from moonmill.trainer.evaluations import Evaluations
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.records import Event

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FromAfar(MultiTurnEnv):
    """Its tasks are somewhere else."""

    def tasks(self, split: str) -> Iterator[Task]:
        raise TimeoutError("no answer from tasks.example")


class Nobody(Reporter):
    """Is told, and tells nobody."""


class Engine:
    """One that is never asked."""

    @asynccontextmanager
    async def pinned_client(self) -> AsyncIterator[Any]:
        yield SimpleNamespace(version=3)


async def evaluate(path: Path) -> list[Event]:
    config = Config(env=EnvConfig("e-v0"), model=ModelConfig("nowhere"), eval=EvalConfig(tasks=2))
    ledger = Ledger(RunDirectory.create(path, config))
    agent: Any = lambda client, temperature: None  # noqa: E731
    engine: Any = Engine()
    await Evaluations(config, ledger, FromAfar, agent, Nobody()).meanwhile(engine)
    return list(read_jsonl(ledger.run.events, Event))


async def test_one_whose_tasks_cannot_be_had_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    (event,) = await evaluate(tmp_path / "run")
    assert event.kind == "warning"
    assert "an evaluation came to nothing: FromAfar: tasks('eval') raised" in event.data["text"]
    assert "no answer from tasks.example" in event.data["text"]


async def test_a_full_disk_is_no_matter_of_the_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*args: object) -> None:
        raise RunDirectoryError("the disk is full")

    monkeypatch.setattr(Evaluations, "_evaluate", full)
    with pytest.raises(RunDirectoryError):
        await evaluate(tmp_path / "run")
