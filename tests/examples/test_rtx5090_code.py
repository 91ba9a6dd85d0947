"""Functions in sandboxes on one consumer GPU: its configs, on tiny models of the same architectures, without a GPU."""

import re
import subprocess
from pathlib import Path

import pytest

from moonmill.config_io import load_config
from tests.examples.rtx5090 import ALGORITHMS, EXAMPLES, LOOKED_AT, assert_learned, looked_at, make_tiny, trained

EXAMPLE = EXAMPLES / "rtx5090-code"


@pytest.mark.parametrize("name", ["rtx5090-math", "rtx5090-code"])
def test_the_settings_for_a_cpu_are_those_of_a_config(name: str) -> None:
    page = (EXAMPLES / name / "README.md").read_text()
    command = page[page.index("    moonmill train ") :].partition("\n\n")[0]
    config = load_config(EXAMPLES / name / "sao.yaml", re.findall(r"--set (\S+)", command))
    assert (config.model.device, config.learner.quantization, config.train.steps) == ("cpu", None, 2)
    assert config.algorithm.critic
    assert config.algorithm.critic.warmup_steps == 1
    assert ("source" in config.env.args) == (name == "rtx5090-math")


@pytest.mark.parametrize("asked", [[], ["sao"], ["sao", "llama"], ["ppo", "qwen3"]])
def test_the_script_says_how_it_is_used(asked: list[str]) -> None:
    done = subprocess.run([EXAMPLE / "run.sh", *asked], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "usage: run.sh sao|grpo gemma4|qwen3 [--set KEY=VALUE]...\n")


@pytest.mark.parametrize(("algorithm", "family"), [*zip(ALGORITHMS, ("qwen3", "gemma4"), strict=True)])
def test_a_config_is_valid_but_for_the_gpu_and_trains_from_end_to_end(
    algorithm: str, family: str, tmp_path: Path
) -> None:
    tiny, config = make_tiny(family, tmp_path / "tiny"), EXAMPLE / f"{algorithm}.yaml"
    checks = looked_at(config, family, tiny)
    assert {name: checks[name].detail for name in (*LOOKED_AT, "sandbox") if not checks[name].ok} == {}
    assert_learned(trained(config, family, tiny, tmp_path, "engine.type=embedded"))
