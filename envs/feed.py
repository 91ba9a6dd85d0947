"""Tasks for asynchronous code, from an author's generator that may block or never come back."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.taskset import Taskset
from moonmill.envs.threads import OwnerThread
from moonmill.errors import EnvCodeError
from moonmill.types import Task


class TaskFeed:
    """A `Taskset` whose code runs on a thread of its own. Use it as an async context.

    Args:
        factory: makes the environment whose `tasks` are asked.
        split: such as `train` or `eval`.
        seed: what the tasks' random numbers hang from.
    """

    def __init__(self, factory: Callable[[], MultiTurnEnv], split: str, seed: int) -> None:
        self._factory = factory
        self._split = split
        self._seed = seed
        self._taskset: Taskset | None = None
        self._turn = anyio.Lock()
        self._late: EnvCodeError | None = None
        self._thread: OwnerThread

    async def __aenter__(self) -> Self:
        self._thread = OwnerThread.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.release()

    async def task(self, index: int) -> Task:
        """Task number `index`, from 0.

        Raises:
            ConfigError: the split has no tasks.
            EnvCodeError: the author's code raised, yielded something else, or took longer than `max_task_seconds`.
        """
        async with self._turn:
            if self._late is not None:
                raise self._late
            if self._taskset is None:
                with anyio.move_on_after(MultiTurnEnv.max_task_seconds):
                    self._taskset = await self._thread.run(Taskset, self._factory, self._split, self._seed)
            if self._taskset is not None:
                with anyio.move_on_after(self._taskset.max_task_seconds):
                    return await self._thread.run(self._taskset.task, index)
            self._late = self._too_late(index)
            raise self._late

    def _too_late(self, index: int) -> EnvCodeError:
        if self._taskset is None:
            seconds = MultiTurnEnv.max_task_seconds
            return EnvCodeError(f"the environment's constructor took longer than {seconds:g} s")
        return EnvCodeError(
            f"tasks({self._split!r}) of the environment took longer than {self._taskset.max_task_seconds:g} s to yield "
            f"task {index}: make it quicker, or raise max_task_seconds in the environment's class"
        )
