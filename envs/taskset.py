"""The tasks of a split by their number, from an author's generator."""

import threading
from collections.abc import Callable, Iterator

from moonmill.blame import blaming
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.tasks import numbered
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
        self._factory = factory
        self._lock = threading.Lock()
        self._rewind()

    @property
    def max_task_seconds(self) -> float:
        """The environment's bound; whoever asks for a task keeps to it."""
        return self._env.max_task_seconds

    def task(self, index: int) -> Task:
        """Task number `index`, from 0. Author's code runs here, and may block.

        Raises:
            ConfigError: the split has no tasks.
            EnvCodeError: the author's code raised, or yielded something else.
        """
        if index < 0:
            raise IndexError(f"there is no task {index}: they are counted from 0")
        with self._lock:
            if index not in self._kept:
                if index < self._next:
                    self._rewind()
                self._advance_to(index)
            return self._kept[index]

    def _advance_to(self, index: int) -> None:
        try:
            while self._next <= index:
                self._kept[self._next] = next(self._tasks)
                self._next += 1
                self._kept.pop(self._next - _KEPT - 1, None)
        except BaseException:
            self._rewind()  # A generator that has raised is at its end.
            raise

    def _rewind(self) -> None:
        with blaming("the environment", "its constructor"):
            self._env = (
                self._factory()
            )  # A new one each time: what a generator leaves in `self` must not change the tasks.
        self._env.taskset_seed = self.seed
        self._tasks: Iterator[Task] = numbered(self._env, self.split)
        self._next = 0
        self._kept: dict[int, Task] = {}
