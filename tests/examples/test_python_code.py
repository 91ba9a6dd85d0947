"""The configs of the coding example are valid but for the model, which is made by another example."""

from pathlib import Path

import pytest

from moonmill import make
from moonmill.config_io import load_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "python-code"


@pytest.mark.parametrize("name", ["eval.yaml", "humaneval.yaml", "train.yaml"])
def test_its_environment_can_be_made_and_has_tasks(name: str) -> None:
    config = load_config(EXAMPLE / name)
    env = make(config.env.id, **config.env.args)
    assert next(iter(env.tasks("eval"))).answer
    assert (EXAMPLE / config.model.path).resolve() == EXAMPLE.parent / "smollm2-cpu" / "model"
