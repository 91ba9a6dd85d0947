"""How far engine and learner may be apart, by what both compute in."""

from pathlib import Path
from typing import Any, Literal, cast

import pytest

from moonmill.config import Config, EnvConfig, LearnerConfig, ModelConfig
from moonmill.trainer.handover import Weights, WrongWeightsError, take_over

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Engine:
    """Answers the probe with -3, whatever it has loaded."""

    base_url = "http://engine"

    def __init__(self) -> None:
        self.loaded: set[int] = set()

    async def load_version(self, version: int, path: Path) -> None:
        self.loaded.add(version)

    async def unload_version(self, version: int) -> None:
        self.loaded.discard(version)

    async def probe(self, prompt: list[int], version: int) -> float:
        return -3.0


@pytest.mark.parametrize(
    ("quantization", "dtype", "most"),
    [
        (None, "float32", 0.01),
        (None, "bfloat16", 0.25),
        ("8bit", "float32", 1.0),
        ("8bit", "bfloat16", 1.0),
        ("4bit", "bfloat16", 2.0),
    ],
)
async def test_a_quantized_learner_may_be_further_from_the_engine_and_no_further(
    quantization: Literal["4bit", "8bit"] | None, dtype: Literal["float32", "bfloat16"], most: float
) -> None:
    learner = LearnerConfig(quantization=quantization)
    config = Config(EnvConfig("calculator-v0"), ModelConfig("/models/m", dtype=dtype), learner=learner)
    engine = Engine()

    async def take(version: int, probe: float) -> float | None:
        weights = Weights(Path("/run/weights"), probe)
        return (await take_over(cast(Any, engine), version, weights, [1], config)).difference

    assert await take(1, -3.0 - 0.9 * most) == pytest.approx(0.9 * most)
    for wrong in (-3.0 + 1.1 * most, float("nan")):
        with pytest.raises(WrongWeightsError, match=rf"version 2, loaded from /run/weights.* may be {most:g} apart"):
            await take(2, wrong)
    assert engine.loaded == {1}, "what answers otherwise is unloaded again"


async def test_the_version_an_engine_was_started_with_is_compared_and_stays_where_it_is() -> None:
    config = Config(EnvConfig("calculator-v0"), ModelConfig("/models/m"))
    engine = Engine()
    assert (await take_over(cast(Any, engine), 0, Weights(Path("m"), -3.005), [1], config)).value == -3.0
    for wrong in (-3.02, float("nan")):
        with pytest.raises(WrongWeightsError, match=r"the model that is trained, m: .* may be 0.01 apart\. Either"):
            await take_over(cast(Any, engine), 0, Weights(Path("m"), wrong), [1], config)
    assert not engine.loaded
