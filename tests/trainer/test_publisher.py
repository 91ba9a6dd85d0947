"""Steps are counted as published with the weights that they left."""

from pathlib import Path

import anyio
import pytest

from moonmill.trainer.publisher import Publisher

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class SlowEngine:
    """Takes a version once it is let."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bool]] = []
        self.asked = anyio.Event()
        self.may = anyio.Event()

    async def publish(self, version: int, weights: Path, *, changed: bool, probe: float | None) -> None:
        self.asked.set()
        await self.may.wait()
        self.taken.append((version, changed))

    def in_flight(self) -> tuple[int, ...]:
        return ()

    def queued(self) -> float:
        return 0.0


async def published(*later: tuple[int, int | None]) -> tuple[list[tuple[int, bool]], int]:
    """Version 1 of step 1 is being handed over when `later` steps are done, some with a version. What is taken then."""
    engine = SlowEngine()
    publisher = Publisher(engine, 0, lambda: None)
    async with anyio.create_task_group() as group:
        group.start_soon(publisher.run)
        publisher.offer(1, 1, Path("v1"), changed=True)
        await engine.asked.wait()
        for step, version in later:
            publisher.offer(step, version or 0, None if version is None else Path(f"v{version}"), changed=True)
        engine.may.set()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    return engine.taken, publisher.step


async def test_of_versions_made_during_a_hand_over_the_newest_is_next() -> None:
    assert await published((2, 2), (3, 3)) == ([(1, True), (3, True)], 3)


async def test_a_step_without_a_version_during_a_hand_over_counts_once_that_is_done() -> None:
    """One whose update was left out. A run that is stopped waits until its last step is counted."""
    assert await published((2, None)) == ([(1, True)], 2)


async def test_a_step_without_a_version_does_not_count_before_the_version_before_it() -> None:
    assert await published((2, 2), (3, None)) == ([(1, True), (2, True)], 3)
