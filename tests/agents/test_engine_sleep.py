"""An engine that gives its memory free, and those who ask it meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest
import torch
from transformers import PreTrainedModel

from moonmill.agents.client import InferenceClient
from moonmill.agents.control import EngineControl
from moonmill.agents.engine.attention import KVCache
from moonmill.agents.engine.models import load_model, load_version, move_weights
from moonmill.agents.engine.scheduler import Delta, Params, Request, Scheduler
from moonmill.agents.processes import ServerProcess
from moonmill.errors import EngineError
from moonmill.types import Completion, Sampling

from .conftest import IDS, engine_argv

pytestmark = pytest.mark.anyio

PROMPT = [IDS[c] for c in "hello"]
GREEDY = Sampling(temperature=0.0, max_tokens=150)


@pytest.fixture
async def control(engine: ServerProcess) -> AsyncIterator[EngineControl]:
    async with EngineControl(engine.base_url) as control:
        yield control
        await control.wake_up()


@pytest.fixture
async def client(engine: ServerProcess) -> AsyncIterator[InferenceClient]:
    async with InferenceClient(engine.base_url, max_attempts=2) as client:
        yield client


async def ask(client: InferenceClient) -> Completion:
    return await client.complete(PROMPT, GREEDY, seed=0, stop_token_ids=())


async def test_requests_of_ours_wait_for_an_engine_that_sleeps_and_go_on_where_they_were(
    control: EngineControl, client: InferenceClient
) -> None:
    expected = await ask(client)
    done: list[Completion] = []

    async def complete() -> None:
        done.append(await ask(client))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(complete)
        with anyio.fail_after(30):
            while not any(run.tokens for run in client._running):  # noqa: ASYNC110  # inside of the client
                await anyio.sleep(0.001)
        await control.sleep()
        tasks.start_soon(complete)
        await anyio.sleep(0.5)
        assert not done, "far more attempts than are tried at an engine that is there"
        await control.wake_up()
    assert [completion.tokens for completion in done] == [expected.tokens] * 2


async def test_what_it_cannot_do_asleep_is_refused_in_words(control: EngineControl, other_dir: Path) -> None:
    await control.sleep()
    await control.sleep()
    async with httpx.AsyncClient(base_url=control.base_url) as http:
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await http.get("/health")).status_code == 200
        for stream in (False, True):
            body = {"model": "policy-v0", "prompt": PROMPT, "stream": stream}
            answer = await http.post("/v1/completions", json=body)
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == "the engine is asleep, until POST /wake_up"
        with pytest.raises(EngineError, match=r"did not load version 7 .*the engine is asleep"):
            await control.load_version(7, other_dir)
        await control.wake_up()
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
        refused = await http.post("/sleep?level=2")
        assert refused.json()["error"]["message"] == "level 2 of sleep is not known here, only 1"


async def test_only_one_that_was_started_for_it_can_be_put_to_sleep(model_dir: Path, tmp_path: Path) -> None:
    argv = engine_argv(model_dir)
    async with (
        ServerProcess("engine", argv, log_path=tmp_path / "engine.log", start_timeout=120) as engine,
        EngineControl(engine.base_url) as control,
    ):
        with pytest.raises(EngineError, match="did not go to sleep: POST /sleep: Not Found"):
            await control.sleep()


def test_the_cache_is_freed_and_requests_end_unfinished(model_dir: Path) -> None:
    model = load_model(str(model_dir), "float32", "cpu")
    scheduler = Scheduler({"m": model}, max_batch=2, max_length=64, device=torch.device("cpu"))
    told: list[Delta] = []
    for _ in range(3):  # one has no place, and waits
        scheduler.submit(Request("m", PROMPT, Params(max_tokens=8, temperature=0.0), told.append))
    with torch.inference_mode():
        scheduler.step()
    held: KVCache = scheduler._cache
    assert held._layers
    scheduler.clear()
    assert [delta.finish for delta in told] == ["abort"] * 3
    assert scheduler.idle
    assert not held._layers
    scheduler.submit(Request("m", PROMPT, Params(max_tokens=8, temperature=0.0), told.append))
    with torch.inference_mode():
        while not scheduler.idle:
            scheduler.step()
    assert scheduler.counters.cached_tokens == 0
    assert len(told[-1].tokens) == 8


def test_versions_share_what_they_shared_after_their_weights_were_moved(model_dir: Path, adapters: list[Path]) -> None:
    base = load_model(str(model_dir), "float32", "cpu")
    version = load_version(base, adapters[0])
    models = (base, version)
    before = [weights(model) for model in models]
    shared, places = sharing(*models), {t.data_ptr() for m in models for t in m.parameters()}
    assert shared
    made: list[torch.Tensor] = []

    def place(tensor: torch.Tensor) -> torch.Tensor:
        made.append(tensor.clone())
        return made[-1]

    with torch.inference_mode():  # as the thread that decodes does it
        move_weights(models, place)
    assert sharing(*models) == shared
    moved = {t.data_ptr() for m in models for t in m.parameters()}
    assert len(moved) == len(places)
    assert moved <= {tensor.data_ptr() for tensor in made}
    for model, values in zip(models, before, strict=True):
        assert all(torch.equal(tensor, values[name]) for name, tensor in weights(model).items())


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def sharing(base: PreTrainedModel, version: PreTrainedModel) -> set[str]:
    """The parameters that a version has from its base."""
    of_base = {name: p.data_ptr() for name, p in base.named_parameters()}
    return {name for name, p in version.named_parameters() if of_base.get(name) == p.data_ptr()}
