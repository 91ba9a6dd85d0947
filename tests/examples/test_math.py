"""The configs of the example about mathematics are valid but for the model, which is made by another example."""

from pathlib import Path

import pytest

from moonmill import make
from moonmill.config_io import load_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "math"


@pytest.mark.parametrize("name", ["gsm8k.yaml", "train.yaml"])
def test_its_environment_can_be_made_and_has_problems(name: str) -> None:
    config = load_config(EXAMPLE / name)
    tasks = list(make(config.env.id, **config.env.args).tasks("eval"))
    assert len(tasks) == config.eval.tasks == 100
    assert (EXAMPLE / config.model.path).resolve() == EXAMPLE.parent / "smollm2-cpu" / "model"
