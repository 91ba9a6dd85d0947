"""Authors' asynchronous code on its loop: in order while it behaves, left behind when it does not."""

import asyncio
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio
import pytest

from moonmill import Message, tool
from moonmill.envs import EnvHost
from moonmill.envs import loop as module
from moonmill.envs.loop import KEEPER
from moonmill.errors import EnvCodeError
from tests.envs.parts import TASK, OneTask, call, says

T = TypeVar("T")
Run = Callable[[Callable[[], Awaitable[T]]], T]
COLOUR: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Any:
    return lambda main: anyio.run(main, backend=request.param)


async def play(factory: Any, *tools: str) -> list[str]:
    """Call these tools in a new episode, one in a turn; returns their answers."""
    async with EnvHost(factory, "test-v0") as hosted:
        await hosted.reset(TASK, 0)
        return [(await hosted.step(says(call(name)))).messages[0].content for name in tools]


# In order


def test_what_setup_enters_is_left_in_close(run: Run[Any]) -> None:
    """A task group can be left only by the task that entered it."""
    ticks: list[int] = []

    class Env(OneTask):
        async def setup(self) -> None:
            self.stack = AsyncExitStack()
            self.group = await self.stack.enter_async_context(anyio.create_task_group())
            self.group.start_soon(self.tick)

        async def tick(self) -> None:
            while True:
                ticks.append(1)
                await anyio.sleep(0.001)

        @tool
        async def look(self) -> str:
            await anyio.sleep(0.02)
            return "seen"

        async def close(self) -> None:
            self.group.cancel_scope.cancel()
            await self.stack.aclose()
            ticks.append(-1)

    assert run(lambda: play(Env, "look", "look")) == ["seen", "seen"]
    assert len(ticks) > 5
    assert ticks[-1] == -1


def test_what_setup_entered_is_left_in_close_after_the_time_is_up(run: Run[Any]) -> None:
    closed: list[bool] = []

    class Env(OneTask):
        async def setup(self) -> None:
            self.stack = AsyncExitStack()
            await self.stack.enter_async_context(anyio.create_task_group())

        @tool
        async def wait(self) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 60)
                await anyio.sleep(60)

        async def close(self) -> None:
            await self.stack.aclose()
            closed.append(True)

    async def main() -> None:
        with anyio.move_on_after(0.05) as scope:
            await play(Env, "wait")
        assert scope.cancelled_caught
        assert closed == [True]

    run(main)


def test_a_task_of_setup_that_fails_is_told_and_the_episode_can_be_closed(run: Run[Any]) -> None:
    class Env(OneTask):
        async def setup(self) -> None:
            self.group = anyio.create_task_group()
            await self.group.__aenter__()
            self.group.start_soon(self.fail)

        async def fail(self) -> None:
            await anyio.sleep(0.05)
            raise ValueError("lost")

        @tool
        async def wait(self) -> str:
            await anyio.sleep(60)
            return ""

        async def close(self) -> None:
            await self.group.__aexit__(None, None, None)

    async def main() -> None:
        with anyio.fail_after(5), pytest.raises(EnvCodeError):
            await play(Env, "wait")

    run(main)


def test_context_variables_are_the_episodes(run: Run[Any]) -> None:
    class Env(OneTask):
        def __init__(self, colour: str) -> None:
            self.colour = colour

        async def setup(self) -> None:
            assert COLOUR.get() == "none"
            COLOUR.set(self.colour)

        @tool
        async def look(self) -> str:
            await anyio.sleep(0.01)
            return COLOUR.get()

    async def main() -> None:
        found: dict[str, list[str]] = {}

        async def one(colour: str) -> None:
            found[colour] = await play(lambda: Env(colour), "look", "look")

        async with anyio.create_task_group() as group:
            for colour in ("red", "green"):
                group.start_soon(one, colour)
        assert found == {"red": ["red"] * 2, "green": ["green"] * 2}

    run(main)


def test_a_tools_own_timeouts_are_its_own(run: Run[Any]) -> None:
    class Env(OneTask):
        @tool
        async def asyncios(self) -> str:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            except TimeoutError:
                return "late"
            return "early"

        @tool
        async def anyios(self) -> str:
            with anyio.move_on_after(0.01) as scope:
                await anyio.sleep(60)
            return "late" if scope.cancelled_caught else "early"

    assert run(lambda: play(Env, "asyncios", "anyios", "asyncios")) == ["late"] * 3


# Left behind


class Stubborn(OneTask):
    """Ignores that it is cancelled."""

    max_turns = 10**9
    closed = 0

    @tool
    async def stay(self) -> None:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            try:  # noqa: SIM105 - as an author would write it
                await asyncio.sleep(0.5)
            except BaseException:
                pass

    @tool
    async def block(self) -> None:
        time.sleep(2)  # noqa: ASYNC251 - the fault in question

    @tool
    async def look(self) -> str:
        await asyncio.sleep(0)
        return "seen"

    async def close(self) -> None:
        await asyncio.sleep(0)
        type(self).closed += 1


@pytest.mark.parametrize("name", ["stay", "block"])
def test_what_does_not_end_when_cancelled_is_left_behind(run: Run[Any], name: str) -> None:
    Stubborn.closed = 0

    async def main() -> None:
        start = time.monotonic()
        with anyio.move_on_after(0.1) as scope:
            await play(Stubborn, name)
        assert scope.cancelled_caught
        assert await play(Stubborn, "look") == ["seen"]
        assert time.monotonic() - start < 1.5
        assert Stubborn.closed == 2

    run(main)


def test_a_blocked_loop_does_not_hold_up_the_event_loop_that_asks(run: Run[Any]) -> None:
    async def main() -> None:
        worst = 0.0
        async with anyio.create_task_group() as group:
            group.start_soon(play, Stubborn, "block")
            for _ in range(50):
                start = time.monotonic()
                await anyio.sleep(0.005)
                worst = max(worst, time.monotonic() - start)
            group.cancel_scope.cancel()
        assert worst < 0.25

    run(main)


def test_only_the_blocked_loop_is_replaced() -> None:
    loop = KEEPER.get()
    anyio.run(play, Stubborn, "look")
    assert KEEPER.get() is loop

    async def main() -> None:
        with anyio.move_on_after(0.05):
            await play(Stubborn, "block")

    anyio.run(main)
    assert KEEPER.get() is not loop


def test_who_waits_for_a_blocked_loop_is_told_where_it_is_blocked(
    run: Run[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCKED_SECONDS", 0.3)
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.05)
    monkeypatch.setattr(module, "KEEPER", module.LoopKeeper())
    line = Stubborn.block.__code__.co_firstlineno + 2

    async def main() -> None:
        async def victim() -> None:
            with pytest.raises(EnvCodeError, match="has blocked the event loop"):
                await play(Stubborn, *["look"] * 1_000_000)

        async with anyio.create_task_group() as group:
            group.start_soon(victim)
            await anyio.sleep(0.1)
            start = time.monotonic()
            with pytest.raises(EnvCodeError, match=rf"for 0.3 s, at {__file__}:{line}: write what blocks as `def`"):
                await play(Stubborn, "block")
        assert time.monotonic() - start < 1.5
        assert await play(Stubborn, "look") == ["seen"]

    run(main)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_an_odd_exception_ends_no_more_than_its_episode(run: Run[Any], error: type[BaseException]) -> None:
    class Env(OneTask):
        @tool
        async def fail(self) -> None:
            raise error("odd")

        @tool
        async def look(self) -> str:
            return "seen"

    async def main() -> None:
        with anyio.fail_after(5):
            assert error.__name__ in (await play(Env, "fail"))[0]
            assert await play(Env, "look") == ["seen"]

    run(main)


def test_an_authors_timeout_around_a_step_is_the_authors(run: Run[Any]) -> None:
    class Env(OneTask):
        @tool
        def slow(self) -> str:
            time.sleep(0.3)
            return "late"

        @tool
        async def slow_async(self) -> str:
            await asyncio.sleep(60)
            return "late"

        @tool
        def look(self) -> str:
            return "seen"

        async def step(self, action: Message | str) -> Any:
            try:
                return await asyncio.wait_for(super().step(action), 0.05)
            except TimeoutError:
                return "too slow", 0.0, False, False, {}

    expected = ["too slow", "seen", "too slow", "too slow", "seen"]
    assert run(lambda: play(Env, "slow", "look", "slow_async", "slow", "look")) == expected


def test_a_loop_that_is_stopped_is_told_to_all_who_wait(run: Run[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEPER", module.LoopKeeper())

    class Env(Stubborn):
        @tool
        async def stop_loop(self) -> None:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(60)

        @tool
        async def wait(self) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.3)  # The loop takes a while to end; the next episode begins meanwhile.

        async def step(self, action: Message | str) -> Any:
            return await super().step(action)

    async def main() -> None:
        async def one(name: str) -> None:
            with pytest.raises(EnvCodeError):
                await play(Env, name)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(one, "wait")
                await anyio.sleep(0.1)
                group.start_soon(one, "stop_loop")
            assert await play(Stubborn, "look") == ["seen"]

    run(main)


def test_a_fork_that_comes_back_ends(run: Run[Any]) -> None:
    children: list[int] = []

    class Env(OneTask):
        @tool
        def fork(self) -> str:
            children.append(os.fork())
            return "forked"

        @tool
        async def fork_async(self) -> str:
            children.append(os.fork())
            return "forked"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert run(lambda: play(Env, "fork", "fork_async")) == ["forked"] * 2
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


def test_a_process_ends_though_code_is_left_behind() -> None:
    program = """
import anyio, time
from moonmill import Message, ToolCall
from moonmill.envs import EnvHost
from tests.envs.parts import TASK, call, says
from tests.envs.test_loop import Stubborn

class Env(Stubborn):
    def tasks(self, split): yield TASK

async def one(name):
    with anyio.move_on_after(0.2):
        async with EnvHost(Env, "test-v0") as hosted:
            await hosted.reset(TASK, 0)
            await hosted.step(says(call(name)))

async def main():
    for name in ("stay", "block", "look"):
        await one(name)

start = time.monotonic()
anyio.run(main)
print(time.monotonic() - start)
"""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert float(done.stdout) < 1.5
    assert time.monotonic() - start < 10


def test_a_message_without_calls_needs_no_loop(run: Run[Any]) -> None:
    async def main() -> None:
        async with EnvHost(OneTask, "test-v0") as hosted:
            await hosted.reset(TASK, 0)
            assert (await hosted.step(Message("assistant", "x"))).terminated

    run(main)
