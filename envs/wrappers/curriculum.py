"""A sticky curriculum: tasks of one level until they are solved often enough, then those of the next.

Rollouts end in an order that no seed decides, so a task's level is written down, with what it was decided by: the tasks
given and the results, in their order. A level is a function of the lines before it. So a task that is asked for again,
by a run that is resumed or an iterator that begins anew, has the level it had, and no result is counted twice.
"""

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.wrapper import Wrapper, innermost
from moonmill.envs.wrappers.record import shared_file
from moonmill.errors import ConfigError
from moonmill.jsonl import read_jsonl
from moonmill.types import Rollout, Task

_PASSED_OVER = 10_000
"""So many tasks of other levels in a row: then there is none of the one wanted."""


class Curriculum(Wrapper):
    """Gives tasks of one level after another in the split `train`.

    Args:
        env: what is wrapped; its tasks have a `level`.
        path: where it is written down what was given and how it went.
        levels: the first one first.
        threshold: share of successes at which the next level begins.
        window: how many rollouts of the level, the newest, it is taken over.
        success: the least reward of a success.
    """

    def __init__(
        self,
        env: MultiTurnEnv,
        *,
        path: str,
        levels: tuple[str, ...],
        threshold: float = 0.8,
        window: int = 64,
        success: float = 1.0,
    ) -> None:
        super().__init__(env)
        self._success = success
        self.course = _course(Path(path).absolute(), tuple(levels), threshold, window)

    def tasks(self, split: str) -> Iterator[Task]:
        if split != "train":
            yield from super().tasks(split)
            return
        found = self._endless(split)
        for position in itertools.count():
            yield self._next_of(self.course.level_of(position), found)

    def scored(self, rollout: Rollout) -> Rollout:
        if rollout.judged is not None and rollout.task.split == "train":
            self.course.add(rollout.id, rollout.task.level, rollout.judged >= self._success)
        return rollout

    def _endless(self, split: str) -> Iterator[Any]:
        """What the environment yields, over and over; a task that comes again has the id it had."""
        while True:
            place = -1
            yielded: Iterable[Any] = self.env.tasks(split)
            for place, task in enumerate(yielded):
                yield replace(task, id=task.id or f"{split}-{place}") if isinstance(task, Task) else task
            if place < 0:
                return

    def _next_of(self, level: str, found: Iterator[Any]) -> Any:
        """The next task of a level. What is none is let through, to be told of."""
        for task in itertools.islice(found, _PASSED_OVER):
            if not isinstance(task, Task) or task.level == level:
                return task
        raise ConfigError(
            f"curriculum: none of the next {_PASSED_OVER:,} tasks of {type(innermost(self)).__name__} has the level "
            f"{level!r}: `levels` names those that its tasks have"
        )


class Line(Struct, frozen=True, omit_defaults=True):
    """A task of `level` was given for the first time; or, with the id of a rollout, one of that level went so."""

    level: str
    rollout: str | None = None
    success: bool = False


class Course:
    """How far the curriculum has come: shared by all episodes of the process.

    Nothing is written before the first result: until then all tasks have the first level in any case.

    Args:
        path: of the lines.
        levels: the first one first.
        threshold: share of successes at which the next level begins.
        window: how many results it is taken over.

    Raises:
        ConfigError: the file has other levels.
        RunDirectoryError: the file cannot be read.
    """

    def __init__(self, path: Path, levels: tuple[str, ...], threshold: float, window: int) -> None:
        self._path, self._levels, self._threshold = path, levels, threshold
        self._lock = threading.Lock()
        self._given: list[str] = []
        self._unwritten: deque[Line] = deque()
        self._counted: set[str] = set()
        self._newest: deque[bool] = deque(maxlen=window)
        self._index = 0
        for line in read_jsonl(path, Line):
            if line.level not in levels:
                raise ConfigError(f"curriculum: {path} has the level {line.level!r}, which `levels` does not name")
            self._take(line)

    @property
    def level(self) -> str:
        """That of the next new task."""
        return self._levels[self._index]

    def level_of(self, position: int) -> str:
        """That of the task at a position, which was given before or is the next new one."""
        with self._lock:
            if position == len(self._given):
                line = Line(self.level)
                if self._counted:
                    shared_file(self._path).append(line)
                else:
                    self._unwritten.append(line)
                self._take(line)
            return self._given[position]

    def add(self, rollout: str, level: str, success: bool) -> None:
        """Count a result, once. One of another level than the present is written down and decides nothing."""
        with self._lock:
            if rollout in self._counted:
                return
            file = shared_file(self._path)
            while self._unwritten:
                file.append(self._unwritten[0])
                self._unwritten.popleft()
            line = Line(level, rollout, success)
            file.append(line)
            self._take(line)

    def _take(self, line: Line) -> None:
        if line.rollout is None:
            self._given.append(line.level)
            return
        self._counted.add(line.rollout)
        if line.level == self.level:
            self._newest.append(line.success)
            enough = len(self._newest) == self._newest.maxlen
            solved = sum(self._newest) >= self._threshold * len(self._newest)
            if enough and solved and self._index + 1 < len(self._levels):
                self._index += 1
                self._newest.clear()


@cache
def _course(path: Path, levels: tuple[str, ...], threshold: float, window: int) -> Course:
    return Course(path, levels, threshold, window)
