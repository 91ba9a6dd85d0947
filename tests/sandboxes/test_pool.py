"""The pool hands out each sandbox once, not too many at once, and tries again what can be tried again."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

import anyio
import pytest

from moonmill.sandboxes import Sandbox, SandboxSpec, SandboxSpecError, SandboxUnavailableError
from moonmill.sandboxes import pool as pool_module
from moonmill.sandboxes.local import LocalProvider
from moonmill.sandboxes.pool import SandboxPool

pytestmark = pytest.mark.anyio
SPEC = SandboxSpec()


class Box:
    """As much of a sandbox as a pool looks at."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lost = ""
        self.files: dict[str, Any] = {}

    async def write_files(self, files: Mapping[str, Any]) -> None:
        self.files |= files


class Boxes:
    """A provider that fails when it is told to."""

    name = "boxes"

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = [*errors]
        self.made: list[Box] = []
        self.open_now: set[int] = set()
        self.most_open = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert not self.open_now

    def enforces(self) -> Mapping[str, str]:
        return {}

    def require(self, spec: SandboxSpec) -> None:
        if spec.image:
            raise SandboxSpecError("no images")

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        await anyio.sleep(0.001)
        assert not spec.files, "they are written when it is handed out"
        if self.errors and (error := self.errors.pop(0)):
            raise error
        box = Box(len(self.made))
        self.made.append(box)
        self.open_now.add(box.number)
        self.most_open = max(self.most_open, len(self.open_now))
        try:
            yield cast(Sandbox, box)
        finally:
            self.open_now.discard(box.number)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110  # inside of the pool
            await anyio.sleep(0.002)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_FIRST_BACKOFF", 0.01)


async def test_each_is_handed_out_once_and_not_too_many_at_once() -> None:
    boxes, used, go_on = Boxes(), list[int](), anyio.Event()

    async def episode(pool: SandboxPool) -> None:
        async with pool.open(SPEC) as box:
            used.append(cast(Box, box).number)
            await go_on.wait()

    async with SandboxPool(boxes, max_open=3) as pool:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(episode, pool)
            await until(lambda: len(used) == 3)
            assert (pool.metrics().in_use, pool.metrics().waiting) == (3, 17)
            go_on.set()
        metrics = pool.metrics()
    assert sorted(used) == [*range(20)]
    assert boxes.most_open == 3
    assert (metrics.created, metrics.in_use, metrics.waiting, metrics.failed) == (20, 0, 0, 0)


async def test_who_waits_longest_is_served_first() -> None:
    order: list[int] = []

    async def episode(pool: SandboxPool, number: int) -> None:
        async with pool.open(SPEC):
            order.append(number)
            await anyio.sleep(0.001)

    async with SandboxPool(Boxes(), max_open=1) as pool, anyio.create_task_group() as group, pool.open(SPEC):
        for number in range(10):
            group.start_soon(episode, pool, number)
            await until(lambda number=number: pool.metrics().waiting == number + 1)  # type: ignore[misc]
    assert order == [*range(10)]


async def test_some_stand_ready_and_are_used_and_replaced() -> None:
    boxes = Boxes()
    async with SandboxPool(boxes, prewarm=2) as pool:
        for _ in range(4):
            async with pool.open(SandboxSpec(files={"a": "b"})) as box:
                assert cast(Box, box).files == {"a": "b"}
                await until(lambda: pool.metrics().ready == 2)
        assert pool.metrics().reused == 3
        assert pool.metrics().created == 6


async def test_one_that_was_lost_or_is_old_while_it_stood_ready_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boxes = Boxes()
    async with SandboxPool(boxes, prewarm=1) as pool:
        async with pool.open(SPEC):
            await until(lambda: pool.metrics().ready == 1)
        boxes.made[0].lost = boxes.made[1].lost = "gone"
        async with pool.open(SPEC) as box:
            assert cast(Box, box).number in (2, 3)
            await until(lambda: pool.metrics().ready == 1)
        monkeypatch.setattr(pool_module, "_OLDEST", 0.0)
        async with pool.open(SPEC) as box:
            assert cast(Box, box).number in (4, 5)
        await until(lambda: len(boxes.open_now) == 1)


async def test_of_specs_that_nobody_asks_for_any_more_none_stand_ready() -> None:
    boxes = Boxes()
    async with SandboxPool(boxes, prewarm=1) as pool:
        for number in range(8):
            async with pool.open(SandboxSpec(env={"N": str(number)})):
                await until(lambda: pool.metrics().ready == min(number + 1, pool_module._KINDS))  # noqa: B023
        await until(lambda: len(boxes.open_now) == pool.metrics().ready == pool_module._KINDS)


async def test_making_one_is_tried_again_and_counted() -> None:
    trouble = SandboxUnavailableError("the daemon is busy")
    async with SandboxPool(Boxes(trouble, trouble)) as pool:
        async with pool.open(SPEC) as box:
            assert cast(Box, box).number == 0
        assert pool.metrics().failed == 2


@pytest.mark.parametrize(
    ("errors", "wanted"),
    [
        ([SandboxUnavailableError("no daemon")] * 3, SandboxUnavailableError),
        ([KeyError("a bug of the provider's")], KeyError),
    ],
)
async def test_what_does_not_help_is_not_tried_further(errors: list[Exception], wanted: type[Exception]) -> None:
    boxes = Boxes(*errors)
    async with SandboxPool(boxes, max_open=1) as pool:
        with pytest.raises(wanted):
            async with pool.open(SPEC):
                pass
        assert not boxes.errors
        async with pool.open(SPEC):
            assert pool.metrics().in_use == 1, "the place is free again"


async def test_what_is_raised_in_one_is_not_tried_again_and_comes_out() -> None:
    boxes = Boxes()
    async with SandboxPool(boxes) as pool:
        with pytest.raises(SandboxUnavailableError, match="lost"):
            async with pool.open(SPEC):
                raise SandboxUnavailableError("lost in the middle")
    assert len(boxes.made) == 1


async def test_a_spec_that_cannot_be_is_refused_before_anybody_waits() -> None:
    async with SandboxPool(Boxes(), max_open=1) as pool, pool.open(SPEC):
        with pytest.raises(SandboxSpecError), anyio.fail_after(1):
            async with pool.open(SandboxSpec(image="ubuntu")):
                pass


async def test_who_waits_too_long_is_told_why() -> None:
    async with SandboxPool(Boxes(), max_open=1, open_timeout=0.05) as pool, pool.open(SPEC):
        with pytest.raises(SandboxUnavailableError, match=r"became free in 0\.05 s: all 1 are in use \(max_open\)"):
            async with pool.open(SPEC):
                pass
        assert pool.metrics().waiting == 0


async def test_who_leaves_while_waiting_takes_no_place() -> None:
    async with SandboxPool(Boxes(), max_open=1) as pool:
        async with pool.open(SPEC):
            with anyio.move_on_after(0.01):
                async with pool.open(SPEC):
                    pytest.fail("there is no place")
        with anyio.fail_after(1):
            async with pool.open(SPEC):
                pass


async def test_one_that_is_not_entered_or_left_has_no_sandbox() -> None:
    pool = SandboxPool(Boxes(), prewarm=1)
    for _ in range(2):
        with pytest.raises(SandboxUnavailableError, match=r"used outside of its `async with SandboxPool"):
            async with pool.open(SPEC):
                pass
        async with pool, pool.open(SPEC):
            await until(lambda: pool.metrics().ready == 1)
    assert pool.metrics().ready == 0


async def test_who_waits_for_one_when_it_is_closed_is_told_so() -> None:
    class Slow(Boxes):
        @asynccontextmanager
        async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
            await anyio.sleep_forever()
            yield

    async def wait(pool: SandboxPool) -> None:
        with pytest.raises(SandboxUnavailableError, match=r"the pool was closed meanwhile|used outside"):
            async with pool.open(SPEC):
                pass
        told.append(True)

    told: list[bool] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, SandboxPool(Slow(), max_open=1) as pool:
            group.start_soon(wait, pool)
            group.start_soon(wait, pool)
            await until(lambda: (pool.metrics().in_use, pool.metrics().waiting) == (1, 1))
    assert told == [True, True]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"max_open": 0}, "max_open is 0, but should be 1 or more"),
        ({"prewarm": -1}, "prewarm is -1, but should be 0 or more"),
        ({"open_timeout": 0}, "open_timeout is 0, but should be seconds"),
    ],
)
async def test_bounds_that_cannot_be_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SandboxPool(Boxes(), **given)


async def test_real_ones_stand_ready(local: LocalProvider) -> None:
    async with SandboxPool(LocalProvider(), prewarm=2) as pool:
        async with pool.open(SPEC) as first:
            await first.write_file("mine", "1")
            await until(lambda: pool.metrics().ready == 2)
        async with pool.open(SandboxSpec(files={"given": "2"})) as second:
            assert [f.path for f in await second.list_files()] == ["given"]
        assert pool.metrics().reused == 1
