"""Waiting for what goes on elsewhere: on an episode's thread, on any other, on any event loop."""

import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from moonmill.blame import LeftBehind
from moonmill.envs.clock import Clock
from moonmill.envs.elsewhere import CallOff, Deliver, wait_on_loop, wait_on_thread
from moonmill.envs.loop import Answer, soon_here
from moonmill.envs.threads import OwnerThread


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Any:
    return lambda main: anyio.run(main, backend=request.param)


class Elsewhere:
    """Answers when it is told to; notes when it is called off."""

    def __init__(self, ends_when_called_off: bool = True) -> None:
        self.begun = threading.Event()
        self.is_off = False
        self._ends = ends_when_called_off
        self._deliver: list[Deliver] = []

    def begin(self, deliver: Deliver) -> CallOff:
        self._deliver.append(deliver)
        self.begun.set()
        return self._call_off

    def answer(self, answer: Answer) -> None:
        self.begun.wait(5)
        self._deliver.pop()(answer)

    def _call_off(self) -> None:
        self.is_off = True
        if self._ends:
            self.answer(Answer())


def later(call: Callable[[], None], seconds: float = 0.05) -> None:
    threading.Timer(seconds, call).start()


def test_an_answer_is_returned_or_raised(run: Any) -> None:
    elsewhere = Elsewhere()

    async def main() -> None:
        thread = OwnerThread.acquire()
        for wait in (lambda: thread.run(wait_on_thread, elsewhere.begin), lambda: wait_on_loop(elsewhere.begin)):
            later(lambda: elsewhere.answer(Answer(42)))
            assert await wait() == 42
            later(lambda: elsewhere.answer(Answer(error=ValueError("boom"))))
            with pytest.raises(ValueError, match="boom"):
                await wait()
        thread.release()

    run(main)
    later(lambda: elsewhere.answer(Answer(43)))
    assert wait_on_thread(elsewhere.begin) == 43
    assert not elsewhere.is_off


def test_who_asks_for_the_thread_meanwhile_has_to_wait(run: Any) -> None:
    elsewhere, order = Elsewhere(), []

    def first() -> None:
        wait_on_thread(elsewhere.begin)
        order.append("first")

    async def main() -> None:
        thread = OwnerThread.acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(thread.run, first)
            await anyio.sleep(0.02)
            for name in ("second", "third"):
                group.start_soon(thread.run, order.append, name)
                await anyio.sleep(0.02)
            assert order == []
            elsewhere.answer(Answer())
        thread.release()

    run(main)
    assert order == ["first", "second", "third"]


def test_cancelling_calls_it_off_and_leaves_the_thread_in_order(run: Any) -> None:
    elsewhere = Elsewhere(ends_when_called_off=False)

    async def main() -> None:
        thread = OwnerThread.acquire()
        start = time.monotonic()
        with anyio.move_on_after(0.05):
            await thread.run(wait_on_thread, elsewhere.begin)
        assert time.monotonic() - start < 1
        assert elsewhere.is_off
        assert not thread.abandoned
        elsewhere.answer(Answer("too late"))
        other = Elsewhere()
        later(lambda: other.answer(Answer("in time")))
        assert await thread.run(wait_on_thread, other.begin) == "in time"
        thread.release()

    run(main)


def test_code_that_goes_on_although_nobody_waits_for_it_gets_nothing_more(run: Any) -> None:
    elsewhere, told = Elsewhere(), []

    def stubborn() -> None:
        for _ in range(3):
            try:
                wait_on_thread(elsewhere.begin)
            except BaseException as e:
                told.append(type(e))

    async def main() -> None:
        thread = OwnerThread.acquire()
        with anyio.move_on_after(0.05):
            await thread.run(stubborn)
        assert not thread.abandoned
        thread.release()

    run(main)
    assert told == [LeftBehind] * 3


def test_a_cancelled_task_waits_for_the_end_of_what_it_called_off_but_not_long(run: Any) -> None:
    async def main() -> None:
        for ends in (True, False):
            elsewhere = Elsewhere(ends)
            start = time.monotonic()
            with anyio.move_on_after(0.05) as scope:
                await wait_on_loop(elsewhere.begin)
            assert scope.cancelled_caught
            assert elsewhere.is_off
            assert time.monotonic() - start < 1

    run(main)


def test_a_clock_stands_still_from_the_first_waiting_to_the_end_of_the_last(run: Any) -> None:
    async def main() -> None:
        start = anyio.current_time()
        with anyio.move_on_after(0.3) as scope:
            clock = Clock(scope, soon_here())
            clock.stop()
            clock.stop()
            await anyio.sleep(0.4)
            clock.go_on()
            await anyio.sleep(0.2)
            clock.go_on()
            await anyio.sleep(10)
        assert scope.cancelled_caught
        assert 0.85 < anyio.current_time() - start < 3

    run(main)
