"""`Taskset`: an author's generator, by number."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from moonmill import ConfigError, Message, MultiTurnEnv, Task, Taskset
from moonmill.envs import taskset as module
from moonmill.errors import EnvCodeError
from moonmill.seeding import derive_seed


class Endless(MultiTurnEnv):
    """Random numbers, without end."""

    def tasks(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            yield Task(str(rng.randint(0, 10**9)))


class Three(MultiTurnEnv):
    """Three tasks, the second with an id and a seed of its own."""

    def tasks(self, split: str) -> list[Task]:
        return [Task("a"), Task("b", id="bee", split="other", seed=5), Task("c")]


def prompts(taskset: Taskset, *indices: int) -> list[str]:
    found = [taskset.task(i).prompt for i in indices]
    assert all(isinstance(prompt, str) for prompt in found)
    return [str(prompt) for prompt in found]


FIRST = prompts(Taskset(Endless, "train", 0), *range(50))


def test_the_same_number_is_the_same_task_in_any_order() -> None:
    taskset = Taskset(Endless, "train", 0)
    order = [7, 3, 3, 49, 0, 12, 7]
    assert prompts(taskset, *order) == [FIRST[i] for i in order]


def test_another_taskset_gives_the_same_tasks() -> None:
    assert prompts(Taskset(Endless, "train", 0), *range(50)) == FIRST


@pytest.mark.parametrize(("split", "seed"), [("eval", 0), ("train", 1)])
def test_another_split_or_seed_gives_other_tasks(split: str, seed: int) -> None:
    assert not set(FIRST) & set(prompts(Taskset(Endless, split, seed), *range(50)))


def test_going_back_beyond_what_is_kept_gives_the_same_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 4)
    taskset = Taskset(Endless, "train", 0)
    order = [0, 20, 19, 16, 3, 40, 0]
    assert prompts(taskset, *order) == [FIRST[i] for i in order]
    assert len(taskset._kept) <= 5


def test_a_finite_split_is_gone_through_again_and_again() -> None:
    taskset = Taskset(Three, "train", 0)
    assert prompts(taskset, *range(8)) == ["a", "b", "c", "a", "b", "c", "a", "b"]
    assert prompts(taskset, 300, 1) == ["a", "b"]


def test_id_split_and_seed_are_filled_in_unless_the_author_set_them() -> None:
    taskset = Taskset(Three, "train", 9)
    first, second = taskset.task(0), taskset.task(1)
    assert (first.id, first.split, first.seed) == ("train-0", "train", derive_seed(9, "train", 0))
    assert (second.id, second.split, second.seed) == ("bee", "other", 5)
    again = taskset.task(3)
    assert again.id == "train-0", "the same problem"
    assert again.seed != first.seed


def test_what_a_generator_leaves_in_self_does_not_change_the_tasks() -> None:
    class Env(MultiTurnEnv):
        def __init__(self) -> None:
            self.seen = 0

        def tasks(self, split: str) -> Iterator[Task]:
            while True:
                self.seen += 1
                yield Task(str(self.seen))

    taskset = Taskset(Env, "train", 0)
    taskset.task(2000)
    assert taskset.task(0).prompt == "1"


def test_a_split_without_tasks_is_an_error_each_time() -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> list[Task]:
            return []

    taskset = Taskset(Env, "eval", 0)
    for _ in range(2):
        with pytest.raises(ConfigError, match="Env has no tasks in the split 'eval'"):
            taskset.task(0)


def test_a_generator_that_raises_is_an_error_with_its_place_each_time() -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> Iterator[Task]:
            yield Task("a")
            raise ValueError("no more")

    taskset = Taskset(Env, "train", 0)
    for _ in range(2):
        assert taskset.task(0).prompt == "a"
        with pytest.raises(
            EnvCodeError, match=r"Env: tasks\('train'\) raised ValueError: no more \(.*test_taskset.py:"
        ):
            taskset.task(1)


@pytest.mark.parametrize("value", ["a text", None, Message("user", "x"), {"prompt": "x"}])
def test_something_else_than_a_task_is_an_error(value: Any) -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> Iterator[Any]:
            yield value

    with pytest.raises(EnvCodeError, match=r"Env\.tasks\('train'\) yielded .* but should yield a Task"):
        Taskset(Env, "train", 0).task(0)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Task("x", level=2), r"`str`, got `int` - at `\$\.level`"),  # type: ignore[arg-type]
        (Task("x", id=7), r"task 7 is not as a Task should be: .* `\$\.id`"),  # type: ignore[arg-type]
        (Task((Message("bot", "x"),)), r"Invalid enum value 'bot' - at `\$\.prompt\[0\]\.role`"),  # type: ignore[arg-type]
    ],
)
def test_a_task_that_could_not_be_read_from_a_log_again_is_an_error(task: Task, told: str) -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> Iterator[Task]:
            yield task

    with pytest.raises(EnvCodeError, match=told):
        Taskset(Env, "train", 0).task(0)


def test_messages_of_a_prompt_may_be_plain_data() -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> Iterator[Task]:
            yield Task([{"role": "user", "content": "x"}])  # type: ignore[arg-type]

    assert Taskset(Env, "train", 0).task(0).prompt == (Message("user", "x"),)


def test_tasks_that_forgets_to_yield_is_an_error() -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> Any:
            pass

    with pytest.raises(EnvCodeError, match="'NoneType' object is not iterable"):
        Taskset(Env, "train", 0).task(0)


def test_an_environments_constructor_that_raises_is_an_error_of_ours() -> None:
    def factory() -> MultiTurnEnv:
        raise OSError("no such file")

    with pytest.raises(EnvCodeError, match="its constructor raised OSError: no such file"):
        Taskset(factory, "train", 0)


def test_there_is_no_task_before_the_first() -> None:
    with pytest.raises(IndexError, match="no task -1"):
        Taskset(Three, "train", 0).task(-1)


def test_threads_that_ask_at_once_get_the_same_tasks() -> None:
    taskset = Taskset(Endless, "train", 0)
    found: dict[int, list[str]] = {}

    def ask(thread: int) -> None:
        order = range(50) if thread % 2 else reversed(range(50))
        found[thread] = [f"{i} {taskset.task(i).prompt}" for i in order]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sorted(lines) == sorted(f"{i} {p}" for i, p in enumerate(FIRST)) for lines in found.values())
    assert len(found) == 8
