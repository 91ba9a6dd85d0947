"""The sticky curriculum."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import anyio
import pytest

from moonmill import Message, MultiTurnEnv, Rollout, Status, StopReason, Task, Taskset
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import Script, ScriptedAgent
from moonmill.envs.library.calculator import Calculator, demonstrate
from moonmill.envs.wrappers import Curriculum
from moonmill.envs.wrappers.curriculum import Course
from moonmill.errors import ConfigError

LEVELS = ("1", "2", "3")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "course.jsonl"


def course(path: Path, threshold: float = 0.75, window: int = 4) -> Course:
    return Course(path, LEVELS, threshold, window)


def test_a_level_sticks_until_the_newest_results_pass_the_threshold(path: Path) -> None:
    at = course(path)
    for n, (success, level) in enumerate(zip([0, 1, 0, 1, 1], ["1"] * 4 + ["2"], strict=True)):
        assert at.level_of(n) == "1"
        at.add(f"{n}", "1", bool(success))
        assert at.level == level
    assert at.level_of(5) == "2"
    for n in range(3):
        at.add(f"more-{n}", "2", True)
    assert at.level == "2"


def test_late_results_of_an_earlier_level_decide_nothing(path: Path) -> None:
    at = course(path)
    for n in range(12):
        at.add(f"{n}", "1", True)
    assert at.level == "2"


def test_the_last_level_stays(path: Path) -> None:
    at = course(path, window=1)
    for n, level in enumerate([*LEVELS, "3", "3"]):
        at.add(f"{n}", level, True)
    assert at.level == "3"


def test_after_a_kill_every_task_has_the_level_it_had_and_no_result_counts_twice(path: Path) -> None:
    before = course(path, window=2)
    levels = []
    for n in range(9):
        levels.append(before.level_of(n))
        before.add(f"{n}", levels[-1], n % 4 != 0)
    assert set(levels) == set(LEVELS)
    with path.open("a") as file:
        file.write('{"level":"3","roll')  # a torn line
    again = course(path, window=2)
    again.add("8", "3", True)
    assert [again.level_of(n) for n in range(9)] == levels
    assert again.level_of(9) == before.level


def test_nothing_is_written_before_the_first_result(path: Path) -> None:
    at = course(path)
    assert [at.level_of(n) for n in range(5)] == ["1"] * 5
    assert not path.exists()
    at.add("0", "1", False)
    assert len(path.read_text().splitlines()) == 6


def test_killed_before_the_first_result_was_written_no_task_is_counted_twice(path: Path) -> None:
    path.write_text('{"level":"1"}\n' * 2)
    at = course(path, window=1)
    assert [at.level_of(n) for n in range(3)] == ["1"] * 3
    at.add("0", "1", True)
    assert at.level_of(3) == "2"
    again = course(path, window=1)
    assert [again.level_of(n) for n in range(5)] == ["1", "1", "1", "2", "2"]


def test_a_file_with_other_levels_is_refused(path: Path) -> None:
    path.write_text('{"level":"hard"}\n')
    with pytest.raises(ConfigError, match="has the level 'hard', which `levels` does not name"):
        course(path)


def env(path: Path, **arguments: object) -> Curriculum:
    settings = {"levels": LEVELS, "window": 2, **arguments}
    return Curriculum(Calculator(), path=str(path), **settings)  # type: ignore[arg-type]


def play(path: Path, script: Script, numbers: range, tasks: Taskset) -> list[str]:
    runner = EpisodeRunner("calculator-v0", lambda: env(path), ScriptedAgent(script))

    async def several() -> list[Rollout]:
        return [await runner.run(tasks.task(n), id=f"{tasks.split}-{n}", seed=n) for n in numbers]

    return [rollout.task.level for rollout in anyio.run(several)]


def test_episodes_that_succeed_bring_harder_tasks_and_those_that_fail_do_not(path: Path) -> None:
    train, held_out = (Taskset(lambda: env(path), split, seed=0) for split in ("train", "eval"))
    assert play(path, demonstrate, range(20), held_out) != ["1"] * 20
    assert play(path, lambda messages: "no", range(3), train) == ["1", "1", "1"]
    assert play(path, demonstrate, range(3, 9), train) == ["1", "1", "2", "2", "3", "3"]
    again = Taskset(lambda: env(path), "train", seed=0)
    assert [again.task(n) for n in range(9)] == [train.task(n) for n in range(9)]


def test_what_has_no_reward_is_not_counted(path: Path) -> None:
    wrapped = env(path, window=1)
    task = Task("1+1", level="1", split="train")
    wrapped.scored(Rollout("0", "c", task, Status.FINISHED, StopReason.ANSWERED, reward=None))
    assert (wrapped.course.level, path.exists()) == ("1", False)
    wrapped.scored(Rollout("0", "c", task, Status.FINISHED, StopReason.ANSWERED, reward=1.0))
    assert wrapped.course.level == "2"


class Finite(MultiTurnEnv):
    """Three tasks."""

    def tasks(self, split: str) -> Iterator[Task]:
        for level in "121":
            yield Task((Message("user", level),), level=level)


def test_a_task_of_a_finite_source_that_comes_again_has_the_id_it_had(path: Path) -> None:
    tasks = Taskset(lambda: Curriculum(Finite(), path=str(path), levels=("1", "2")), "train", seed=0)
    assert [tasks.task(n).id for n in range(4)] == ["train-0", "train-2", "train-0", "train-2"]


def test_a_level_that_no_task_has_is_told(path: Path) -> None:
    wrapped = Curriculum(Finite(), path=str(path), levels=("3",))
    with pytest.raises(ConfigError, match=r"none of the next 10,000 tasks of Finite has the level '3'"):
        next(islice(wrapped.tasks("train"), 1))
