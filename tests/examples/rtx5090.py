"""What the tests of both examples for one consumer GPU share: tiny models of the same architectures, and short runs."""

import json
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from moonmill.config_io import load_config
from moonmill.jsonl import read_jsonl
from moonmill.trainer.records import StepRecord
from moonmill.trainer.validate import Check, validate

EXAMPLES = Path(__file__).parents[2] / "examples"
ALGORITHMS = ("sao", "grpo")
FAMILIES = ("gemma4", "qwen3")
LOOKED_AT = (
    "environment",
    "algorithm",
    "critic",
    "asynchrony",
    "evaluation",
    "model",
    "adapter",
    "versions",
    "prompts",
)
"""What can be known of a config for a GPU without one."""
_CPU = ("model.device=cpu", "model.dtype=float32", "learner.quantization=null")
_SHORT = (
    "train.steps=2",
    "learner.batch_rollouts=8",
    "async.max_concurrent=8",
    "sampling.max_tokens=8",
    "eval.tasks=0",
)
_MOVED = ("algorithm.entropy_coef=0.1", "learner.lr=1.0e-2", "learner.warmup_steps=0")
"""Noise is never right, and so teaches nothing: an entropy bonus moves the weights all the same."""
_DEADLINE = 900.0


def make_tiny(family: str, folder: Path) -> Path:
    """A tiny model of the family's architecture, by the example's own recipe."""
    runpy.run_path(str(EXAMPLES / "rtx5090-math" / "tiny_model.py"))["make_tiny"](family, folder)
    return folder


def write_problems(folder: Path) -> None:
    """What the download would bring: problems in the shape of GSM8K."""
    problems = [{"question": f"What is {n} and {n}?", "answer": f"Twice {n}.\n#### {2 * n}"} for n in range(40)]
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))


def looked_at(config: Path, family: str, model: Path) -> dict[str, Check]:
    """What `moonmill validate` says of a config as it is, but for the model, which is not here."""
    checks = validate(load_config(config, _model(family, model)))
    return {check.name: check for check in checks}


def trained(config: Path, family: str, model: Path, folder: Path, *more: str) -> list[StepRecord]:
    """Two policy updates, with nothing changed but model, device and precision, and how much of all there is."""
    has_critic = load_config(config).algorithm.preset == "sao"
    short = [*_SHORT, *["algorithm.critic.warmup_steps=1"] * has_critic]
    sets = [*_model(family, model), *_CPU, *_MOVED, *short, f"run_dir={folder / 'run'}", *more]
    argv = [sys.executable, "-m", "moonmill", "train", str(config)]
    for override in sets:
        argv += ["--set", override]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=_DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    return [step for step in read_jsonl(folder / "run" / "steps.jsonl", StepRecord) if step.step is not None]


def assert_learned(steps: Sequence[StepRecord]) -> None:
    """Two versions came of it, and where learner and engine are of one version, they agree."""
    assert [step.version for step in steps if step.version] == [1, 2]
    differences = [step.metrics["mismatch_max"] for step in steps if "mismatch_max" in step.metrics]
    assert differences
    assert max(differences) < 1e-2
    assert steps[-1].metrics["ratio_std"] > 0, "the last step's rollouts are of weights from before it"


def _model(family: str, folder: Path) -> list[str]:
    return [f"model.path={folder}", f"model.renderer={family}"]
