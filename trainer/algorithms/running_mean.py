"""Advantages against what a task has brought before: a baseline for single rollouts that needs no critic.

SAO (`arXiv 2607.07508 <https://arxiv.org/abs/2607.07508>`_) compares its critic with it, and does not say how many
rewards it takes; a tracker of each prompt's value is also the baseline of Single-stream Policy Optimization
(`arXiv 2509.13232 <https://arxiv.org/abs/2509.13232>`_). With the last n rewards of the task from before this batch:

    Â_i = R_i − mean(the last n rewards of its task)

A task that has none yet is compared with the other rollouts of its batch: the mean of their rewards is its baseline,
and where the rollout is alone, its own reward is. Every action token of rollout `i` gets Â_i.

What always holds: a rollout's own reward is never in its baseline (but where it is alone); the same batches in the same
order give the same numbers, and the order within a batch plays no part in its advantages; what is remembered is
bounded.
"""

import hashlib
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from moonmill.types import Task

_MOST_TASKS = 100_000
"""Those longest not seen are forgotten beyond it, so that a stream of ever new tasks does not fill the memory."""


class RunningMean:
    """The last rewards of each task.

    Args:
        last: so many of each are remembered.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._rewards: dict[str, deque[float]] = {}

    def advantages(self, tasks: Sequence[str], rewards: Sequence[float]) -> list[float]:
        """Advantages `[rollouts]`, from what was remembered before; then these rewards are remembered too.

        Args:
            tasks: `[rollouts]`, as `key_of` tells them; those of one task in the order in which they are to be
                remembered.
            rewards: `[rollouts]`.
        """
        total = sum(sorted(rewards))  # Sorted, so that the order of the batch does not show in the rounding.
        others = max(len(rewards) - 1, 1)
        found = []
        for task, reward in zip(tasks, rewards, strict=True):
            before = self._rewards.get(task)
            if before is not None:
                baseline = sum(before) / len(before)
            else:
                baseline = (total - reward) / others if len(rewards) > 1 else reward
            found.append(reward - baseline)
        for task, reward in zip(tasks, rewards, strict=True):
            # Put in anew, so that the dict's order is that of the last time a task was seen.
            remembered = self._rewards.pop(task, None) or deque(maxlen=self._last)
            remembered.append(reward)
            self._rewards[task] = remembered
        while len(self._rewards) > _MOST_TASKS:
            del self._rewards[next(iter(self._rewards))]
        return found

    def state_dict(self) -> dict[str, list[float]]:
        """All there is to remember, the task longest not seen first."""
        return {task: list(rewards) for task, rewards in self._rewards.items()}

    def load_state_dict(self, state: Mapping[str, Iterable[float]]) -> None:
        self._rewards = {task: deque(rewards, self._last) for task, rewards in state.items()}


def key_of(task: Task) -> str:
    """What a task is known by: the id its author gave it, else its prompt and answer.

    An id that a taskset has numbered itself, such as `train-7`, says where a task stood, and not that it is the same
    again: an author's generator may begin anew in another order.
    """
    if not re.fullmatch(rf"{re.escape(task.split)}-\d+", task.id) and task.id:
        return task.id
    content = msgspec.json.encode((task.messages(), task.answer), order="deterministic")
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
