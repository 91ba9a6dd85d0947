"""`EnvHost`: one episode on one thread, seen from an event loop. Everything holds on asyncio and on trio."""

import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from moonmill import Message, MoonmillError, MultiTurnEnv, Rollout, Status, StopReason, ToolCall, metric, reward, tool
from moonmill.envs import EnvHost, StepResult, host
from moonmill.envs.threads import OwnerThread
from moonmill.errors import EnvCodeError, EpisodeOverError, RewardError
from tests.envs.parts import TASK, OneTask, call, says

T = TypeVar("T")
Run = Callable[[Callable[[], Awaitable[T]]], T]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Any:
    return lambda main: anyio.run(main, backend=request.param)


async def play(factory: Any, *turns: Message | ToolCall) -> list[StepResult]:
    """Take these turns in a new episode."""
    async with EnvHost(factory, "test-v0") as hosted:
        await hosted.reset(TASK, 0)
        messages = [says(turn) if isinstance(turn, ToolCall) else turn for turn in turns]
        return [await hosted.step(message) for message in messages]


def here() -> str:
    return threading.current_thread().name


async def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on a thread
            await anyio.sleep(0.01)


# The thread


def test_all_sync_code_of_an_episode_runs_on_one_thread(run: Run[Any]) -> None:
    seen: list[int] = []

    class Env(OneTask):
        def __init__(self) -> None:
            # A connection refuses to be used by another thread than the one that made it.
            self.db = sqlite3.connect(":memory:")
            self.note()

        def note(self) -> None:
            self.db.execute("select 1")
            seen.append(threading.get_ident())

        def setup(self) -> None:
            self.note()

        def close(self) -> None:
            self.note()
            self.db.close()

        def step(self, action: Message | str) -> Any:
            self.note()
            return super().step(action)

        @tool
        def look(self) -> None:
            self.note()

        @reward
        def correct(self, rollout: Rollout) -> float:
            self.note()
            return 1.0

    async def main() -> None:
        async with EnvHost(Env, "test-v0") as hosted:
            await hosted.reset(TASK, 0)
            for _ in range(5):
                await hosted.step(says(call("look")))
                await anyio.lowlevel.checkpoint()
            assert (await hosted.score(a_rollout())).reward == 1.0

    run(main)
    assert len(seen) == 14
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


def test_async_code_runs_on_a_loop_of_its_own(run: Run[Any]) -> None:
    class Env(OneTask):
        async def setup(self) -> None:
            self.places = [here()]

        async def step(self, action: Message | str) -> Any:
            self.places.append(here())
            observation, *rest = await super().step(action)
            return (*observation, Message("user", " ".join([*self.places, here()]))), *rest

        @tool
        async def look(self) -> str:
            return here()

        @tool
        def look_sync(self) -> str:
            return here()

    async def main() -> None:
        [result] = await play(Env, says(call("look", "a"), call("look_sync", "b")))
        loop, thread, rest = (m.content for m in result.messages)
        assert loop == "moonmill-loop"
        assert thread == "moonmill-episode"
        assert rest.split() == ["moonmill-loop"] * 3

    run(main)


def test_blocking_tools_of_many_episodes_run_at_the_same_time(run: Run[Any]) -> None:
    class Env(OneTask):
        @tool
        def block(self) -> None:
            time.sleep(0.4)

    async def main() -> float:
        start = time.monotonic()
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(play, Env, call("block"))
        return time.monotonic() - start

    assert run(main) < 5  # 20 s one after another.


def test_the_event_loop_goes_on_while_a_tool_blocks(run: Run[Any]) -> None:
    class Env(OneTask):
        @tool
        def block(self) -> None:
            time.sleep(0.3)

    async def main() -> float:
        worst, done = 0.0, anyio.Event()

        async def episode() -> None:
            await play(Env, call("block"))
            done.set()

        async with anyio.create_task_group() as group:
            group.start_soon(episode)
            while not done.is_set():
                start = time.monotonic()
                await anyio.sleep(0.005)
                worst = max(worst, time.monotonic() - start)
        return worst

    assert run(main) < 0.25


def test_threads_are_used_again(run: Run[Any]) -> None:
    async def main() -> None:
        await play(OneTask, Message("assistant", "x"))
        before = threading.active_count()
        for _ in range(20):
            await play(OneTask, Message("assistant", "x"))
        assert threading.active_count() == before

    run(main)


# Cancellation


def test_a_blocking_tool_is_left_behind_and_the_loop_is_not_held_up(run: Run[Any]) -> None:
    free, closed_by = threading.Event(), []

    class Env(OneTask):
        def close(self) -> None:
            closed_by.append(here())

        @tool
        def block(self) -> None:
            free.wait(10)

    async def main() -> None:
        start = time.monotonic()
        with anyio.move_on_after(0.1) as scope:
            await play(Env, call("block"))
        assert scope.cancelled_caught
        assert time.monotonic() - start < 2
        assert not closed_by
        free.set()
        # What belongs to a busy thread is closed there when it is free.
        await eventually(lambda: closed_by == ["moonmill-episode"])

    run(main)


def test_a_thread_that_was_left_behind_is_not_used_again(run: Run[Any]) -> None:
    free = threading.Event()

    async def main() -> None:
        thread = OwnerThread.acquire()
        with anyio.move_on_after(0.05):
            await thread.run(free.wait, 10)
        assert thread.abandoned
        with pytest.raises(RuntimeError, match="still busy"):
            await thread.run(here)
        thread.release()
        assert OwnerThread.acquire() is not thread
        free.set()

    run(main)


def test_a_call_that_ends_soon_after_it_is_cancelled_leaves_the_thread_in_order(run: Run[Any]) -> None:
    async def main() -> None:
        thread = OwnerThread.acquire()
        with anyio.move_on_after(0.02):
            await thread.run(time.sleep, 0.1)
        assert not thread.abandoned
        assert await thread.run(here) == "moonmill-episode"
        thread.release()

    run(main)


def test_cancelling_ends_an_async_tool_and_closes_the_environment(run: Run[Any]) -> None:
    events: list[str] = []

    class Env(OneTask):
        def close(self) -> None:
            events.append("closed")

        @tool
        async def wait(self) -> None:
            try:
                await anyio.sleep(60)
            except BaseException:
                events.append("cancelled")
                raise

    async def main() -> None:
        with anyio.move_on_after(0.1):
            await play(Env, says(call("wait", "a"), call("wait", "b")))
        assert events == ["cancelled", "cancelled", "closed"]

    run(main)


def test_cancelling_ends_an_async_step_inside_super(run: Run[Any]) -> None:
    events: list[str] = []

    class Env(OneTask):
        async def step(self, action: Message | str) -> Any:
            return await super().step(action)

        async def close(self) -> None:
            await anyio.lowlevel.checkpoint()
            events.append("closed")

        @tool
        async def wait(self) -> None:
            await anyio.sleep(60)

    async def main() -> None:
        with anyio.move_on_after(0.1):
            await play(Env, call("wait"))
        assert events == ["closed"]

    run(main)


def test_an_async_close_needs_no_thread(run: Run[Any]) -> None:
    free, blocked, closed = threading.Event(), threading.Event(), []

    class Env(OneTask):
        async def close(self) -> None:
            closed.append(True)

        @tool
        def block(self) -> None:
            blocked.set()
            free.wait(10)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(play, Env, call("block"))
            await anyio.to_thread.run_sync(blocked.wait, 10)
            group.cancel_scope.cancel()
        assert closed == [True]
        free.set()

    run(main)


def test_a_close_that_hangs_is_waited_for_no_longer_than_its_bound(
    run: Run[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_CLOSE_SECONDS", 0.1)
    free = threading.Event()

    class Env(OneTask):
        def close(self) -> None:
            free.wait(10)

    async def main() -> None:
        with anyio.fail_after(3):
            await play(Env, Message("assistant", "x"))
        free.set()

    run(main)


# What the author's code raises


class Broken(OneTask):
    """Raises in one place. Its thread's close is noted."""

    closed: list[str] = []

    def __init__(self, where: str) -> None:
        self.where = where
        self.maybe("its constructor")

    def maybe(self, where: str) -> None:
        if self.where == where:
            raise ValueError("boom")

    def setup(self) -> None:
        self.maybe("setup")

    def reset(self, **options: Any) -> Any:
        self.maybe("reset")
        return super().reset(**options)

    def step(self, action: Message | str) -> Any:
        self.maybe("step")
        return super().step(action)

    def close(self) -> None:
        self.closed.append(self.where)
        self.maybe("close")


@pytest.mark.parametrize("where", ["its constructor", "setup", "reset", "step", "close"])
def test_what_it_raises_has_a_type_a_name_and_a_place(run: Run[Any], where: str) -> None:
    Broken.closed.clear()
    line = Broken.maybe.__code__.co_firstlineno + 2
    with pytest.raises(EnvCodeError) as raised:
        run(lambda: play(lambda: Broken(where), Message("assistant", "x")))
    assert str(raised.value) == f"test-v0: {where} raised ValueError: boom ({__file__}:{line})"
    assert Broken.closed == ([] if where == "its constructor" else [where])


@pytest.mark.parametrize("error", [StopIteration, SystemExit, GeneratorExit, KeyError])
def test_odd_exceptions_come_out_as_well(run: Run[Any], error: type[BaseException]) -> None:
    class Env(OneTask):
        def step(self, action: Message | str) -> Any:
            raise error("odd")

    with pytest.raises(EnvCodeError, match="odd"):
        run(lambda: play(Env, Message("assistant", "x")))


def test_an_async_override_is_blamed_too(run: Run[Any]) -> None:
    class Env(OneTask):
        async def step(self, action: Message | str) -> Any:
            await anyio.lowlevel.checkpoint()
            raise ValueError("boom")

    with pytest.raises(EnvCodeError, match=r"test-v0: step raised ValueError: boom \(.*test_host.py:\d+\)"):
        run(lambda: play(Env, Message("assistant", "x")))


def test_errors_of_ours_pass_through_as_they_are(run: Run[Any]) -> None:
    class LostError(MoonmillError): ...

    class Env(OneTask):
        @tool
        def lose(self) -> None:
            raise LostError("gone")

        @tool
        async def lose_async(self) -> None:
            raise LostError("gone")

    for name in ("lose", "lose_async"):
        with pytest.raises(LostError, match=r"^gone$"):
            run(lambda name=name: play(Env, call(name)))


def test_the_first_error_is_told_though_close_fails_as_well(run: Run[Any]) -> None:
    class Env(OneTask):
        def setup(self) -> None:
            raise ValueError("first")

        def close(self) -> None:
            raise ValueError("second")

    with pytest.raises(EnvCodeError, match="first"):
        run(lambda: play(Env))


def test_the_thread_is_given_back_after_an_error(run: Run[Any]) -> None:
    async def main() -> None:
        for where in ("its constructor", "setup", "reset", "step", "close"):
            with pytest.raises(EnvCodeError):
                await play(lambda where=where: Broken(where), Message("assistant", "x"))
        before = threading.active_count()
        for _ in range(10):
            with pytest.raises(EnvCodeError):
                await play(lambda: Broken("setup"))
        assert threading.active_count() == before

    run(main)


def test_something_that_is_no_environment_is_refused(run: Run[Any]) -> None:
    with pytest.raises(EnvCodeError, match="test-v0 is no MultiTurnEnv, but makes 'a text'"):
        run(lambda: play(lambda: "a text"))


def test_a_setup_that_hangs_is_bounded_by_max_seconds(run: Run[Any]) -> None:
    free = threading.Event()

    class Env(OneTask):
        max_seconds = 0.1

        def setup(self) -> None:
            free.wait(10)

    with pytest.raises(EnvCodeError, match=r"test-v0: setup took longer than 0\.1 s"):
        run(lambda: play(Env))
    free.set()


def test_a_step_after_the_end_is_refused(run: Run[Any]) -> None:
    with pytest.raises(EpisodeOverError):
        run(lambda: play(OneTask, Message("assistant", "x"), Message("assistant", "x")))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e9, -101])
def test_a_turn_reward_out_of_bounds_is_refused(run: Run[Any], value: float) -> None:
    class Env(OneTask):
        @tool
        def grab(self) -> None:
            self.add_reward(value)

    with pytest.raises(RewardError, match="finite number"):
        run(lambda: play(Env, call("grab")))


# What the runner sees


def test_the_limits_are_the_instances(run: Run[Any]) -> None:
    class Env(OneTask):
        max_turns = 3
        max_tokens = 50

        def __init__(self) -> None:
            self.max_seconds = 7.0

    async def main() -> None:
        async with EnvHost(Env, "test-v0") as hosted:
            assert (hosted.limits.max_turns, hosted.limits.max_tokens, hosted.limits.max_seconds) == (3, 50, 7.0)
            assert hosted.tool_specs == ()

    run(main)


def test_what_is_told_of_an_episode_is_that_of_the_newest(run: Run[Any]) -> None:
    class Env(OneTask):
        @tool
        def fail(self) -> str:
            """Raises."""
            raise ValueError("no")

    async def main() -> None:
        async with EnvHost(Env, "test-v0") as hosted:
            await hosted.reset(TASK, 0)
            await hosted.step(says(call("fail")))
            assert len(hosted.faults) == 1
            await hosted.reset(TASK, 0)
            assert not hosted.faults
            assert (await hosted.step(Message("assistant", "x"))).ending is StopReason.ANSWERED

    run(main)


def test_the_finish_reason_reaches_the_environment(run: Run[Any]) -> None:
    class Env(OneTask):
        def step(self, action: Message | str) -> Any:
            return self.finish_reason, 0.0, False, False, {}

    async def main() -> None:
        async with EnvHost(Env, "test-v0") as hosted:
            await hosted.reset(TASK, 0)
            results = [await hosted.step(Message("assistant"), reason) for reason in ("length", "stop")]
            assert [r.messages[0].content for r in results] == ["length", "stop"]

    run(main)


def a_rollout() -> Rollout:
    return Rollout("r", "test-v0", TASK, Status.FINISHED, StopReason.ANSWERED)


def score(factory: Callable[[], MultiTurnEnv], rollout: Rollout) -> Rollout:
    async def main() -> Rollout:
        async with EnvHost(factory, "test-v0") as hosted:
            await hosted.reset(TASK, 0)
            return await hosted.score(rollout)

    return anyio.run(main)


def test_a_slow_scorer_leaves_the_rollout_unscored() -> None:
    class Env(OneTask):
        max_scoring_seconds = 0.1

        @reward
        def slow(self, rollout: Rollout) -> float:
            time.sleep(1)
            return 1.0

    start = time.monotonic()
    scored = score(Env, a_rollout())
    assert time.monotonic() - start < 0.9
    assert (scored.reward, scored.status) == (None, Status.FINISHED)
    assert scored.error == "scoring took longer than max_scoring_seconds (0.1)"


def test_a_slow_async_scorer_is_cancelled() -> None:
    ended: list[bool] = []

    class Env(OneTask):
        max_scoring_seconds = 0.05

        @reward
        async def slow(self, rollout: Rollout) -> float:
            try:
                await anyio.sleep(10)
            finally:
                ended.append(True)
            return 1.0

        @metric
        def never(self, rollout: Rollout) -> float:
            raise AssertionError

    assert score(Env, a_rollout()).reward is None
    assert ended == [True]
