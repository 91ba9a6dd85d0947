"""Whether tasks come back: what remembers results of a task does nothing where none does."""

import time
from collections import Counter
from collections.abc import Callable

from moonmill.algorithm_config import RunningMeanConfig
from moonmill.config import Config
from moonmill.envs import Taskset
from moonmill.envs.wrappers import factory_of
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.algorithms.running_mean import key_of
from moonmill.trainer.checks import Warned
from moonmill.types import Task

_MOST_TASKS = 1000
_MOST_SECONDS = 1.0


def describe_recurrence(config: Config) -> str | Warned:
    """How often the first training tasks of a run come, where something rests on it; a warning where that does nothing.

    Raises:
        MoonmillError: as a taskset raises.
    """
    algorithm = resolve(config.algorithm, config.learner.batch_rollouts)
    group = algorithm.group_size
    wanted: list[tuple[str, int, Callable[[Task], str]]] = []
    if rate := config.async_.filters.success_rate:
        wanted.append(("async.filters.success_rate", rate.last // group + 1, lambda task: task.id))
    if isinstance(algorithm.advantage, RunningMeanConfig):
        wanted.append(("algorithm.advantage: running_mean", 2, key_of))
    wanted = [one for one in wanted if one[1] > 1]
    if not wanted:
        return "nothing rests on whether they come back"
    played = config.train.steps * config.learner.batch_rollouts // group
    tasks = _first(config, min(played, _MOST_TASKS))
    notes = []
    for what, times, key in wanted:
        most = max(Counter(map(key, tasks)).values())
        # Of tasks that come in turn, as many are played as often as the run is longer than the first round.
        if most == 1 and (len(tasks) == _MOST_TASKS or played < times * len(tasks)):
            notes.append(
                f"{what} does nothing where a task comes fewer than {times} times: none of the first {len(tasks):,} "
                f"comes back, of {played:,} that the run trains on"
            )
    if notes:
        return Warned(f"none of the first {len(tasks):,} comes back", "; ".join(notes))
    return f"they come back among the first {len(tasks):,}, or may later"


def _first(config: Config, count: int) -> list[Task]:
    """So many tasks, or as many as can be had in a moment."""
    taskset = Taskset(factory_of(config.env), "train", config.train.seed)
    begin, tasks = time.monotonic(), [taskset.task(0)]
    while len(tasks) < count and time.monotonic() - begin < _MOST_SECONDS:
        tasks.append(taskset.task(len(tasks)))
    return tasks
