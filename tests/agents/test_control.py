"""What is done to an engine apart from sampling, against a real one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moonmill.agents.control import EngineControl
from moonmill.agents.processes import ServerProcess
from moonmill.errors import EngineError

from .conftest import IDS, MAX_LENGTH

pytestmark = pytest.mark.anyio

PROMPT = [IDS[c] for c in "hello"]


@pytest.fixture
async def control(engine: ServerProcess) -> AsyncIterator[EngineControl]:
    async with EngineControl(engine.base_url) as control:
        yield control


async def test_loading_twice_and_unloading_twice_do_no_harm(control: EngineControl, other_dir: Path) -> None:
    for _ in range(2):
        await control.load_version(5, other_dir)
    for _ in range(2):
        await control.unload_version(5)


async def test_a_version_that_is_there_already_is_replaced(
    control: EngineControl, other_dir: Path, markov_dir: Path
) -> None:
    await control.load_version(5, other_dir)
    other = await control.probe(PROMPT, 5)
    await control.load_version(5, markov_dir)
    assert await control.probe(PROMPT, 5) != other
    await control.unload_version(5)


async def test_weights_that_cannot_be_loaded_are_told(control: EngineControl, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"did not load version 3 from {tmp_path}: .*neither a PEFT adapter"):
        await control.load_version(3, tmp_path)


async def test_a_probe_tells_weights_apart(control: EngineControl, other_dir: Path) -> None:
    base = await control.probe(PROMPT, 0)
    await control.load_version(1, other_dir)
    assert abs(await control.probe(PROMPT, 1) - base) > 1e-3
    # A prompt that is partly known already is computed in another shape, and rounded otherwise.
    assert await control.probe(PROMPT, 0) == pytest.approx(base, abs=1e-5)
    await control.unload_version(1)
    with pytest.raises(EngineError, match="did not answer for version 1"):
        await control.probe(PROMPT, 1)


async def test_what_it_serves_is_told(control: EngineControl) -> None:
    cards = {card.id: card.max_model_len for card in await control.models()}
    assert cards["policy-v0"] == MAX_LENGTH


async def test_an_engine_that_is_not_there_is_told(engine: ServerProcess, unused_tcp_port: int) -> None:
    async with EngineControl(engine.base_url) as control:
        assert await control.ailment(5) == ""
        control.base_url = f"http://127.0.0.1:{unused_tcp_port}"
        assert "/health: ConnectError" in await control.ailment(5)
        with pytest.raises(EngineError, match="/v1/load_lora_adapter: ConnectError"):
            await control.load_version(1, Path("/nowhere"))
