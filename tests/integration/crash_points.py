"""A run that is killed at chosen moments, taken up again, and looked at when it has ended.

A life is one short run with a few points. A point is a process to kill and the moment to do it: drawn over the run's
time, or aimed at what is written just then. All is done from outside, as a user's machine would do it: nothing in the
trainer knows of this.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from moonmill.config_io import load_config
from moonmill.jsonl import read_jsonl
from moonmill.rundir import RunDirectory
from moonmill.trainer.records import Event
from moonmill.trainer.summary import read_events
from tests.integration.conftest import DEADLINE, POLICY, events, steps
from tests.integration.crash_checks import check_logs, check_weights
from tests.integration.processes import children, kill, marked, wait_for, watching

TOTAL, WARMUP = 18, 2
"""Learner steps of a run, and those of them that train the critic alone, where there is one."""
VICTIMS = {"controller": "", "engine": "moonmill.agents.engine", "learner": "moonmill.trainer.learner_server"}
"""With the module by which a child is known."""
LATE = {
    "start": 6.0,
    "time": 0.3,
    "log append": 0.0,
    "commit": 0.0,
    "hand-over": 0.04,
    "export": 0.01,
    "checkpoint": 0.02,
    "redo": 0.05,
    "end": 0.3,
}
"""The moments, and how many seconds later at most. `start` may be that of a resume."""
_AIMS = {
    "log append": (".", "rollouts.jsonl"),
    "commit": (".", "steps.jsonl"),
    "hand-over": (".", "steps.jsonl"),
    "export": ("weights", "v"),
    "checkpoint": ("checkpoints", ".unfinished-step"),
}
"""What is seen to be written at a moment: the folder in the run, and how the name begins."""
_GONE_SECONDS = 10.0
"""Until all processes of a run that was killed must have ended."""
_MARK = "MOONMILL_CRASH_LIFE"


class Point(NamedTuple):
    """Kill `victim` at `moment`, once `step` steps are committed, `delay` seconds late."""

    victim: str
    moment: str
    step: int
    delay: float


class Outcome(NamedTuple):
    """What came of a point."""

    point: Point
    steps: int
    """Committed when it struck."""
    struck: bool
    """False where the run had ended before."""

    def __str__(self) -> str:
        moment = f"{self.point.moment} + {1000 * self.point.delay:.0f} ms"
        return (
            f"{self.point.victim:11} {moment:22} after step {self.steps:2}{'' if self.struck else '  had ended before'}"
        )


def draw_config(folder: Path, draw: random.Random) -> Path:
    """A short run of the smallest policy there is, of one of the kinds of run."""
    group = draw.random() < 0.5
    grouped = "{preset: grpo, advantage: {type: group_zscore, group_size: 4}}"
    single = f"{{preset: sao, critic: {{lr: 2.0e-3, warmup_steps: {WARMUP}}}}}"
    lora = ", lora: {r: 4}" if draw.random() < 0.3 else ""
    path = folder / "life.yaml"
    path.write_text(
        f"""
env: {{id: calculator-v0}}
model: {{path: {POLICY}, max_length: 256{lora}}}
run_dir: {folder / "run"}
engine: {{max_batch: 16, max_restarts: 9}}
sampling: {{max_tokens: 32}}
algorithm: {grouped if group else single}
async: {{max_staleness: {draw.choice((0, 2, 4))}, max_concurrent: 16}}
learner: {{batch_rollouts: 8, lr: 1.0e-4, warmup_steps: 4}}
train:
  steps: {TOTAL if group else TOTAL - WARMUP}
  seed: {draw.randrange(1000)}
  checkpoint_every: {draw.choice((2, 3, 5))}
  keep_checkpoints: {draw.choice((1, 2))}
  eval_every: 4
eval: {{tasks: {draw.choice((0, 0, 4))}, temperatures: [1.0]}}
"""
    )
    return path


def draw_points(draw: random.Random, count: int) -> list[Point]:
    """So many points, spread over the steps of a run."""
    points = []
    for place in range(count):
        first, last = TOTAL * place // count, TOTAL * (place + 1) // count - 2
        moment = draw.choice([m for m in LATE if m != "end" or place == count - 1])
        # Only the learner does steps again, and only after it was killed.
        victim = "learner" if moment == "redo" else draw.choice([*VICTIMS, "all"])
        step = {"end": TOTAL, "start": 0}.get(moment, draw.randint(first, last))
        points.append(Point(victim, moment, step, draw.uniform(0, LATE[moment])))
    return points


class Life:
    """One run from its first start to its end, through all that it is killed at.

    Args:
        folder: an empty one.
        seed: draws config and points.
        points: how many.
    """

    def __init__(self, folder: Path, seed: int, points: int) -> None:
        self._draw = random.Random(seed)
        self._folder = folder
        self._config = draw_config(folder, self._draw)
        self._points = draw_points(self._draw, points)
        self._mark = f"{_MARK}={os.getpid()}-{seed}-{folder}"
        self._begun = False
        self.run = folder / "run"
        self.outcomes: list[Outcome] = []

    def live(self) -> None:
        """Run, be killed at every point, and come to the end."""
        trainer = self._start()
        try:
            for point in self._points:
                struck = self._strike(trainer, point)
                self.outcomes.append(Outcome(point, len(steps(self.run)), struck))
                if struck and point.victim in ("controller", "all"):
                    trainer.wait(DEADLINE)
                    self._require_none_left()
                    if self._has_finished():
                        return
                    trainer = self._start()
            trainer.wait(DEADLINE)
            assert trainer.returncode == 0, (self._folder / "told.log").read_text()[-3000:]
            assert self._has_finished()
        finally:
            trainer.kill()
            trainer.wait()
        self._require_none_left()

    def check(self) -> None:
        """Promise 3, and what follows from it."""
        config = load_config(self._config)
        check_logs(self.run, config, TOTAL)
        check_weights(self.run, config)

    def _start(self) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "moonmill", "train", str(self._config)]
        argv += ["--set", f"async.max_concurrent={self._draw.choice((8, 16))}"]
        argv += ["--set", f"async.on_new_version={self._draw.choice(('interrupt', 'finish'))}"]
        argv += ["--resume"] if self._begun and self.run.exists() else []
        self._begun = True
        name, _, value = self._mark.partition("=")
        with (self._folder / "told.log").open("ab") as log:
            return subprocess.Popen(argv, cwd=self._folder, stdout=log, stderr=log, env=os.environ | {name: value})

    def _strike(self, trainer: "subprocess.Popen[bytes]", point: Point) -> bool:
        """Wait for the point and kill; False where the run ended before."""
        victims = [*VICTIMS] if point.victim == "all" else [point.victim]
        if point.moment == "start":
            # Who is to be killed has first to be there.
            reached = wait_for(lambda: all(self._pids(trainer, victim) for victim in victims), trainer)
        else:
            reached = wait_for(lambda: self._trains() and len(steps(self.run)) >= point.step, trainer)
        if reached and point.moment == "redo":
            before = self._came_back()
            kill(self._pids(trainer, "learner"))
            reached = wait_for(lambda: self._came_back() > before, trainer)
        if reached and point.moment in _AIMS:
            where, name = _AIMS[point.moment]
            with watching(self.run / where) as changes:
                reached = wait_for(lambda: any(changed.startswith(name) for changed in changes()), trainer)
        if not reached:
            return False
        time.sleep(point.delay)
        found = [pid for victim in self._draw.sample(victims, len(victims)) for pid in self._pids(trainer, victim)]
        if trainer.poll() is None:
            kill(found)
            return bool(found)
        return False

    def _trains(self) -> bool:
        """The learner of this start is where the run stands."""
        told = [
            e.kind for e in read_jsonl(self.run / "events.jsonl", Event) if e.kind in ("started", "learner_started")
        ]
        return told[-1:] == ["learner_started"]

    def _came_back(self) -> int:
        """How often a learner has done a step again, or was where it had been at once."""
        return len(events(self.run, "step_repeated")) + len(events(self.run, "learner_restarted"))

    def _has_finished(self) -> bool:
        return self.run.exists() and read_events(RunDirectory(self.run)).status == "finished"

    def _pids(self, trainer: "subprocess.Popen[bytes]", victim: str) -> list[int]:
        return [trainer.pid] if victim == "controller" else children(trainer.pid, VICTIMS[victim])

    def _require_none_left(self) -> None:
        """No process of the run is left a moment after its end."""
        end = time.monotonic() + _GONE_SECONDS
        while left := marked(self._mark):
            assert time.monotonic() < end, f"still running: {left}"
            time.sleep(0.02)
