"""The environment of `bench_stragglers.py`: turns that wait for a tool, now and then for long."""

import math
import time
from collections.abc import Iterator
from typing import Any

from moonmill import Message, MultiTurnEnv, Rollout, Task, reward, tool

_Z99 = 2.3263478740408408
"""The 99% point of the normal distribution."""


class Stragglers(MultiTurnEnv):
    """An episode of so many turns, whatever the model says; after each but the last a tool is waited for.

    Latencies are log-normal and drawn from the episode's own random numbers, so that two runs with one seed have the
    same in each of their episodes.

    Args:
        p50: seconds that half of the waits are shorter than.
        p99: seconds that all but one of a hundred are shorter than.
        turns: the least and the most turns of an episode.
    """

    max_turns = 16
    max_seconds = 600.0
    reward_bounds = (0.0, 1.0)

    def __init__(self, p50: float = 0.2, p99: float = 5.0, turns: tuple[int, int] = (3, 6)) -> None:
        self.p50, self.spread, self.turns = p50, math.log(p99 / p50) / _Z99, turns
        self.left = 0

    def tasks(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            left, right = rng.randint(10, 999), rng.randint(10, 999)
            yield Task(f"{left}+{right}", left + right)

    @tool
    def calculate(self, expression: str) -> str:
        """Add two whole numbers.

        Args:
            expression: such as 12+34
        """
        left, sign, right = expression.partition("+")
        return str(int(left) + int(right)) if sign and left.isdecimal() and right.isdecimal() else "error: use a+b"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation = super().reset(seed=seed, options=options)
        self.left = self.rng.randint(*self.turns)
        return observation

    def step(self, action: Message | str) -> Any:
        answers, *_ = super().step(action)
        self.left -= 1
        if not self.left:
            return answers, 0.0, True, False, {}
        time.sleep(self.p50 * math.exp(self.spread * self.rng.gauss(0.0, 1.0)))
        return answers or (Message("user", str(self.task.prompt)),), 0.0, False, False, {}

    @reward
    def correct(self, rollout: Rollout) -> float:
        said = (m.content.strip() for m in rollout.messages if m.role == "assistant")
        return float(str(self.task.answer) in said)
