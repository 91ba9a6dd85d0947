"""An evaluation beside training: it has slots of its own, takes few of training's rollouts, and gets on itself."""

import time
from pathlib import Path
from statistics import fmean

from moonmill.config_io import load_config
from moonmill.reporting import EvalResult, StepLine
from moonmill.trainer.run import train
from tests.integration.conftest import assert_accounted_for

WAITING = """
import time
from moonmill import Message, MultiTurnEnv, Task, reward

class Waiting(MultiTurnEnv):
    "Three turns, and a quarter of a second after each but the last: slots are what is scarce."

    reward_bounds = (0.0, 1.0)
    turn = 0

    def tasks(self, split):
        rng = self.task_rng(split)
        while True:
            yield Task(f"{rng.randint(10, 999)}+{rng.randint(10, 999)}")

    def step(self, action):
        super().step(action)
        self.turn += 1
        if self.turn == 3:
            return (), 0.0, True, False, {}
        time.sleep(0.25)
        return (Message("user", "12"),), 0.0, False, False, {}

    @reward
    def by_chance(self, rollout):
        return float(self.rng.random() < 0.5)
"""
BOUND = 0.6
"""So much at least of the rollouts a second without an evaluation is left beside one. Were the 16 slots of training
shared with the 8 of the evaluation, two thirds would be left at the most."""
SAMPLES, BESIDE = 32, 8


class Timed:
    """A reporter that notes when steps are done, and evaluations begin and end."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.begun: list[float] = []
        self.ended: list[float] = []

    def phase(self, text: str) -> None:
        if text.startswith("evaluating (step"):
            self.begun.append(time.monotonic())

    def step(self, line: StepLine) -> None:
        self.steps.append(time.monotonic())

    def eval(self, result: EvalResult) -> None:
        if result.label.startswith("step"):
            assert result.samples == SAMPLES
            self.ended.append(time.monotonic())

    def warn(self, text: str) -> None:
        assert "an evaluation came to nothing" not in text


def test_training_and_evaluation_do_not_starve_each_other(config: Path, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    sets = [f"env.id={tmp_path / 'waiting.py'}:Waiting", "train={steps: 48, eval_every: 12, checkpoint_every: 100}"]
    sets += [f"eval={{samples: {SAMPLES}, temperatures: [1.0], max_concurrent: {BESIDE}}}", "async.max_staleness=4"]
    told = Timed()
    train(load_config(config, sets), resume=False, reporter=told)
    assert_accounted_for(tmp_path / "run")
    evaluations = list(zip(told.begun, told.ended, strict=True))
    assert len(evaluations) >= 2
    beside, alone = [], []
    for before, after in zip(told.steps[4:], told.steps[5:], strict=False):
        middle = (before + after) / 2
        (beside if any(begin < middle < end for begin, end in evaluations) else alone).append(after - before)
    share = fmean(alone) / fmean(beside)
    print(f"{share:.2f} of the rollouts/s beside an evaluation; steps beside {len(beside)}, alone {len(alone)}")
    assert min(len(beside), len(alone)) >= 5
    assert share > BOUND
    # Were it to get only what training leaves, an evaluation would last until training ends.
    assert evaluations[0][1] < told.steps[-1]
    per_second = [SAMPLES / (end - begin) for begin, end in evaluations]
    training = 8 / fmean(alone)
    assert min(per_second) > 0.25 * training * BESIDE / 16
