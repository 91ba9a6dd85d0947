"""The tasks of a split by their number, from an author's generator."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from moonmill.envs.base import MultiTurnEnv
from moonmill.errors import ConfigError
from moonmill.seeding import derive_seed
from moonmill.types import Task

_KEPT = 1024
"""The last so many tasks are kept, for episodes that ask for a task again."""


class Taskset:
    """A lazy source of tasks: `task(i)` is always the same for the same seed, split and i.

    A finite generator is gone through again and again. Safe to use from several threads.

    Args:
        factory: makes the environment whose `tasks` are asked.
        split: such as `train` or `eval`.
        seed: what the tasks' random numbers hang from.
    """

    def __init__(self, factory: Callable[[], MultiTurnEnv], split: str, seed: int) -> None:
        self.split = split
        self.seed = seed
        self._env = factory()
        self._env.taskset_seed = seed
        self._lock = threading.Lock()
        self._tasks: Iterator[Task] = iter(())
        self._next = 0
        self._kept: dict[int, Task] = {}

    def task(self, index: int) -> Task:
        """Task number `index`, from 0. Author's code runs here, and may block.

        Raises:
            ConfigError: the split has no tasks, or yields something else.
        """
        with self._lock:
            if index not in self._kept:
                if index < self._next or self._next == 0:
                    self._next, self._tasks = 0, self._endless()
                while self._next <= index:
                    self._kept[self._next] = self._complete(next(self._tasks), self._next)
                    self._next += 1
                    self._kept.pop(self._next - _KEPT - 1, None)
            return self._kept[index]

    def _endless(self) -> Iterator[Task]:
        while True:
            empty = True
            for task in self._env.tasks(self.split):
                empty = False
                yield task
            if empty:
                raise ConfigError(f"{type(self._env).__name__} has no tasks in the split {self.split!r}")

    def _complete(self, task: Any, index: int) -> Task:
        if not isinstance(task, Task):
            raise ConfigError(f"{type(self._env).__name__}.tasks yielded {task!r:.200}, but should yield a Task")
        return replace(
            task,
            id=task.id or f"{self.split}-{index}",
            split=task.split or self.split,
            seed=task.seed or derive_seed(self.seed, self.split, index),
        )
