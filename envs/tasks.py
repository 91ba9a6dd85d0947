"""The tasks an author's `tasks` yields: endlessly, numbered, and checked."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from moonmill.blame import blaming
from moonmill.errors import ConfigError, EnvCodeError
from moonmill.seeding import derive_seed
from moonmill.types import Task

if TYPE_CHECKING:
    from moonmill.envs.base import MultiTurnEnv


def numbered(env: "MultiTurnEnv", split: str) -> Iterator[Task]:
    """The tasks of `split`, over and over where they end, with id, split and seed filled in.

    A problem that comes again has the id it had, and another seed.

    Raises:
        ConfigError: the split has no tasks.
        EnvCodeError: the author's generator raised, or yielded something else.
    """
    for index, (place, task) in enumerate(_endless(env, split)):
        if not isinstance(task, Task):
            raise EnvCodeError(f"{type(env).__name__}.tasks({split!r}) yielded {task!r:.200}, but should yield a Task")
        complete = replace(
            task,
            id=task.id or f"{split}-{place}",
            split=task.split or split,
            seed=task.seed or filled_in_seed(env.taskset_seed, split, index),
        )
        yield replace(complete, prompt=_as_read(env, complete).prompt)


def filled_in_seed(taskset_seed: int, split: str, index: int) -> int:
    """The seed of task number `index` of a split, where its author gave none."""
    return derive_seed(taskset_seed, split, index)


def _as_read(env: "MultiTurnEnv", task: Task) -> Task:
    """What a log makes of a task: there, messages that are plain data are `Message`s.

    A task goes into the logs, and to the learner: what they cannot hold is told before it is played.
    """
    where = f"{type(env).__name__}.tasks({task.split!r}): task {task.id}"
    try:
        line = msgspec.json.encode(task)
        msgspec.msgpack.encode(task)  # So it goes to the learner; it knows no number beyond 64 bits.
        return msgspec.json.decode(line, type=Task)
    except msgspec.ValidationError as e:
        raise EnvCodeError(f"{where} is not as a Task should be: {e}") from e
    except (TypeError, ValueError, OverflowError) as e:
        raise EnvCodeError(
            f"{where} cannot be written down: {e}. Its prompt, answer and info may hold texts, numbers up to 64 bits, "
            "lists, dicts and msgspec.Structs; a large number goes in as a text"
        ) from e


def _endless(env: "MultiTurnEnv", split: str) -> Iterator[tuple[int, Any]]:
    """The tasks, each with its place in its round."""
    while True:
        place = -1
        for place, task in enumerate(_once(env, split)):
            yield place, task
        if place < 0:
            raise ConfigError(f"{type(env).__name__} has no tasks in the split {split!r}: its `tasks` yielded nothing")


def _once(env: "MultiTurnEnv", split: str) -> Iterator[Any]:
    name, where = type(env).__name__, f"tasks({split!r})"
    with blaming(name, where):
        tasks = iter(env.tasks(split))
    while True:
        with blaming(name, where):
            try:
                task = next(tasks)
            except StopIteration:
                return
        yield task
