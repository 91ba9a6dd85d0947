"""`TaskFeed`: an author's generator, asked from an event loop."""

import threading
import time
from collections.abc import Iterator

import anyio
import pytest

from moonmill import ConfigError, MultiTurnEnv, Task, Taskset
from moonmill.envs import TaskFeed
from moonmill.errors import EnvCodeError
from tests.envs.parts import OneTask


class Counting(MultiTurnEnv):
    """Tasks that name the thread they were made on."""

    def tasks(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            yield Task(f"{rng.random()}", info={"thread": threading.get_ident()})


class Blocking(OneTask):
    """Its third task never comes."""

    max_task_seconds = 0.1

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task("a")
        yield Task("b")
        self.event.wait(30)


def test_it_gives_what_the_taskset_gives_and_all_on_one_thread() -> None:
    async def main() -> None:
        expected = [Taskset(Counting, "train", 3).task(i).prompt for i in range(20)]
        async with TaskFeed(Counting, "train", 3) as feed:
            found: dict[int, Task] = {}

            async def one(index: int) -> None:
                found[index] = await feed.task(index)

            async with anyio.create_task_group() as group:
                for index in range(20):
                    group.start_soon(one, index)
        assert [found[i].prompt for i in range(20)] == expected
        threads = {task.info["thread"] for task in found.values()}
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    anyio.run(main)


def test_a_generator_that_blocks_is_an_error_for_whoever_asks() -> None:
    event = threading.Event()

    async def main() -> None:
        start = time.monotonic()
        async with TaskFeed(lambda: Blocking(event), "train", 0) as feed:
            assert (await feed.task(1)).prompt == "b"
            for index in (2, 0):
                with pytest.raises(EnvCodeError, match=r"tasks\('train'\) .* longer than 0.1 s to yield task 2: make"):
                    await feed.task(index)
        assert time.monotonic() - start < 2

    anyio.run(main)
    event.set()


def test_whoever_waits_for_a_task_can_be_cancelled() -> None:
    event = threading.Event()

    async def main() -> None:
        start = time.monotonic()
        with anyio.move_on_after(0.05):
            async with (
                TaskFeed(lambda: Blocking(event), "train", 0) as feed,
                anyio.create_task_group() as group,
            ):
                for _ in range(20):
                    group.start_soon(feed.task, 5)
        assert time.monotonic() - start < 2

    anyio.run(main)
    event.set()


def test_a_constructor_that_blocks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MultiTurnEnv, "max_task_seconds", 0.1)
    event = threading.Event()

    class Env(OneTask):
        def __init__(self) -> None:
            event.wait(30)

    async def main() -> None:
        async with TaskFeed(Env, "train", 0) as feed:
            with pytest.raises(EnvCodeError, match=r"constructor took longer than 0.1 s"):
                await feed.task(0)

    anyio.run(main)
    event.set()


def test_errors_come_through() -> None:
    class Empty(MultiTurnEnv):
        def tasks(self, split: str) -> list[Task]:
            return []

    async def main() -> None:
        async with TaskFeed(Empty, "eval", 0) as feed:
            with pytest.raises(ConfigError, match="no tasks in the split 'eval'"):
                await feed.task(0)

    anyio.run(main)
