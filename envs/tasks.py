"""The tasks an author's `tasks` yields: endlessly, numbered, and checked."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from moonmill.blame import blaming
from moonmill.errors import ConfigError, EnvCodeError
from moonmill.seeding import derive_seed
from moonmill.types import Task

if TYPE_CHECKING:
    from moonmill.envs.base import MultiTurnEnv


def numbered(env: "MultiTurnEnv", split: str) -> Iterator[Task]:
    """The tasks of `split`, over and over where they end, with id, split and seed filled in.

    Raises:
        ConfigError: the split has no tasks.
        EnvCodeError: the author's generator raised, or yielded something else.
    """
    for index, task in enumerate(_endless(env, split)):
        if not isinstance(task, Task):
            raise EnvCodeError(f"{type(env).__name__}.tasks({split!r}) yielded {task!r:.200}, but should yield a Task")
        yield replace(
            task,
            id=task.id or f"{split}-{index}",
            split=task.split or split,
            seed=task.seed or derive_seed(env.taskset_seed, split, index),
        )


def _endless(env: "MultiTurnEnv", split: str) -> Iterator[Any]:
    while True:
        empty = True
        for task in _once(env, split):
            empty = False
            yield task
        if empty:
            raise ConfigError(f"{type(env).__name__} has no tasks in the split {split!r}: its `tasks` yielded nothing")


def _once(env: "MultiTurnEnv", split: str) -> Iterator[Any]:
    with blaming(type(env).__name__, f"tasks({split!r})"):
        yield from env.tasks(split)
