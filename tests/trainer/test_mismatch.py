"""Other weights on the engine than in the learner are told once."""

from typing import Any

import pytest

from moonmill.config import Config, EnvConfig, LearnerConfig, ModelConfig
from moonmill.trainer.mismatch import MismatchWatch


def config_with(dtype: Any, quantization: Any = None) -> Config:
    return Config(EnvConfig("test-v0"), ModelConfig("m", dtype=dtype), learner=LearnerConfig(quantization=quantization))


def test_a_base_that_is_quantized_in_the_learner_alone_may_be_further_off() -> None:
    watch = MismatchWatch(config_with("float32", "4bit"))
    assert watch.see(1, {"mismatch_max": 6.6}) is None
    assert watch.see(2, {"mismatch_max": 25.0}) is not None


@pytest.mark.parametrize(("dtype", "rounding", "other"), [("float32", 1e-3, 0.4), ("bfloat16", 0.5, 10.5)])
def test_what_is_no_rounding_is_told_once(dtype: str, rounding: float, other: float) -> None:
    watch = MismatchWatch(config_with(dtype))
    assert watch.see(1, {"mismatch_max": rounding}) is None
    assert watch.see(2, {}) is None
    told = watch.see(3, {"mismatch_max": other})
    assert told is not None
    assert told.startswith(f"step 3: engine and learner are {other:g} apart")
    assert watch.see(4, {"mismatch_max": other}) is None
