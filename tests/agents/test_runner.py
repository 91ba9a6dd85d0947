"""One episode, in every way it can end."""

import math
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from moonmill import (
    Action,
    Message,
    MoonmillError,
    MultiTurnEnv,
    Observation,
    Rollout,
    Status,
    StopReason,
    Task,
    ToolCall,
    reward,
    stop,
    tool,
)
from moonmill.agents.agent import Session, Turn
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import ToolSpec
from moonmill.errors import ContextFullError, EngineError, PromptTooLongError, RenderError
from moonmill.types import FinishReason

TASK = Task("go", answer="42", id="t")
WORK = Message("assistant", tool_calls=(ToolCall("1", "work", {}),))
ANSWER = Message("assistant", "42")
freed = threading.Event()
"""Sets the blocking parts of `Env` free, after the test."""


@pytest.fixture(autouse=True)
def _freed() -> Iterator[None]:
    freed.clear()
    yield
    freed.set()


class Env(MultiTurnEnv):
    """Does as the test says, and notes that it was closed."""

    max_turns = 4
    closed = 0

    def tasks(self, split: str) -> Iterator[Task]:
        yield TASK

    def close(self) -> None:
        type(self).closed += 1

    @tool
    def work(self) -> str:
        return "worked"

    @tool
    def submit(self) -> None:
        self.finish(reward=0.5)

    @tool
    def block(self) -> None:
        freed.wait(30)

    @tool
    async def sleep(self) -> None:
        await anyio.sleep(30)

    @tool
    def lose(self) -> None:
        raise MoonmillError("the sandbox is gone")

    @tool
    def bribe(self) -> None:
        self.add_reward(math.nan)

    @reward
    def correct(self, rollout: Rollout) -> float:
        return float(rollout.final_text() == self.task.answer)


class Player:
    """An agent whose turns are given: a message, or something that is raised."""

    def __init__(self, *turns: Message | Turn | Exception) -> None:
        self.turns = turns
        self.seen: list[tuple[Message, ...]] = []
        self.tools: tuple[ToolSpec, ...] = ()
        self.seed = 0

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        self.tools, self.seed = tools, seed
        return self

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        turn = self.turns[len(self.seen)]
        self.seen.append(tuple(new_messages))
        await anyio.lowlevel.checkpoint()
        if isinstance(turn, Exception):
            raise turn
        return Turn(turn) if isinstance(turn, Message) else turn


def calls(name: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall("1", name, {}),))


def play(env: Callable[[], MultiTurnEnv], agent: Any, **options: Any) -> Rollout:
    async def main() -> Rollout:
        return await EpisodeRunner("test-v0", env, agent).run(TASK, **{"id": "r", "seed": 3, **options})

    return anyio.run(main)


def ended(rollout: Rollout) -> tuple[Status, StopReason, float | None]:
    return rollout.status, rollout.stop_reason, rollout.reward


# Finished


def test_an_answer_ends_the_episode() -> None:
    rollout = play(Env, Player(WORK, ANSWER), index=5, group="g")
    assert ended(rollout) == (Status.FINISHED, StopReason.ANSWERED, 1.0)
    assert (rollout.id, rollout.env, rollout.task, rollout.seed) == ("r", "test-v0", TASK, 3)
    assert (rollout.index, rollout.group, rollout.error) == (5, "g", None)
    assert [m.content for m in rollout.messages] == ["go", "", "worked", "42"]
    assert (rollout.rewards, rollout.turn_rewards) == ({"correct": 1.0}, (0.0, 0.0))


def test_the_agent_is_given_what_is_new_the_tools_and_the_seed() -> None:
    player = Player(WORK, ANSWER)
    play(Env, player, seed=9)
    assert [[m.content for m in new] for new in player.seen] == [["go"], ["worked"]]
    assert [spec.name for spec in player.tools] == ["work", "submit", "block", "sleep", "lose", "bribe"]
    assert player.seed == 9


def test_a_tool_ends_the_episode() -> None:
    rollout = play(Env, Player(calls("submit")))
    assert ended(rollout) == (Status.FINISHED, StopReason.STOPPED, 0.5)
    assert rollout.turn_rewards == (0.5,)
    assert rollout.messages[-1].role == "tool"


def test_a_stop_method_ends_the_episode() -> None:
    class Stopped(Env):
        @stop
        def enough(self) -> bool:
            return True

    assert ended(play(Stopped, Player(WORK))) == (Status.FINISHED, StopReason.STOPPED, 0.0)


def test_tokens_are_kept_as_sampled() -> None:
    segments = (Observation((1, 2)), Action((3,), (-0.5,), (0,)))
    rollout = play(Env, Player(Turn(ANSWER, "stop", segments)))
    assert rollout.segments == segments


# Truncated


def test_a_turn_cut_by_length_is_no_answer() -> None:
    rollout = play(Env, Player(Turn(ANSWER, "length")))
    assert ended(rollout)[:2] == (Status.TRUNCATED, StopReason.LENGTH)


def test_a_turn_cut_by_length_is_no_answer_though_an_override_takes_it_for_one() -> None:
    class Hasty(Env):
        def step(self, action: Message | str) -> Any:
            return "", 0.0, True, False, {}

    assert ended(play(Hasty, Player(Turn(ANSWER, "length"))))[:2] == (Status.TRUNCATED, StopReason.LENGTH)


def test_max_turns() -> None:
    rollout = play(Env, Player(*[WORK] * 5))
    assert ended(rollout) == (Status.TRUNCATED, StopReason.MAX_TURNS, 0.0)
    assert rollout.turns == 4
    assert rollout.messages[-1].content == "worked"


def test_max_tokens() -> None:
    class Short(Env):
        max_tokens = 5

    turn = Turn(WORK, "stop", (Observation((1, 2)), Action((3,), (0.0,), (0,))))
    rollout = play(Short, Player(turn, turn, turn))
    assert ended(rollout)[:2] == (Status.TRUNCATED, StopReason.MAX_TOKENS)
    assert rollout.tokens == 6


def test_a_full_context() -> None:
    rollout = play(Env, Player(WORK, ContextFullError("full")))
    assert ended(rollout) == (Status.TRUNCATED, StopReason.MAX_TOKENS, 0.0)
    assert rollout.messages[-1].content == "worked"
    assert rollout.turn_rewards == (0.0,)


def test_a_step_that_truncates() -> None:
    class Env2(Env):
        def step(self, action: Message | str) -> Any:
            return "", 0.0, False, True, {}

    assert ended(play(Env2, Player(WORK)))[:2] == (Status.TRUNCATED, StopReason.STOPPED)


class Brief(Env):
    """Has a tenth of a second."""

    max_seconds = 0.1
    closed = 0


def test_the_time_limit_with_a_blocked_tool() -> None:
    start = time.monotonic()
    rollout = play(Brief, Player(calls("block")))
    assert time.monotonic() - start < 2
    assert ended(rollout) == (Status.TRUNCATED, StopReason.TIME_LIMIT, None)
    assert rollout.error == "the environment is still busy with a call that had to be left behind"
    assert rollout.turn_rewards == (0.0,)
    freed.set()
    deadline = time.monotonic() + 5
    while not Brief.closed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Brief.closed == 1


def test_the_time_limit_with_an_async_tool_is_scored_and_closed() -> None:
    Brief.closed = 0
    assert ended(play(Brief, Player(calls("sleep")))) == (Status.TRUNCATED, StopReason.TIME_LIMIT, 0.0)
    assert Brief.closed == 1


def test_the_time_limit_with_a_slow_agent() -> None:
    class Slow(Player):
        async def act(self, new_messages: Sequence[Message]) -> Turn:
            await anyio.sleep(30)
            raise AssertionError

    rollout = play(Brief, Slow())
    assert ended(rollout) == (Status.TRUNCATED, StopReason.TIME_LIMIT, 0.0)
    assert [m.content for m in rollout.messages] == ["go"]


# Failed


def test_a_prompt_that_is_too_long() -> None:
    rollout = play(Env, Player(PromptTooLongError("200 tokens of 100")))
    assert ended(rollout) == (Status.FAILED, StopReason.PROMPT_TOO_LONG, None)
    assert rollout.error == "200 tokens of 100"


def test_an_engine_that_fails_keeps_what_there_is() -> None:
    rollout = play(Env, Player(WORK, EngineError("no answer")))
    assert ended(rollout) == (Status.FAILED, StopReason.ENGINE_ERROR, None)
    assert rollout.error == "no answer"
    assert [m.content for m in rollout.messages] == ["go", "", "worked"]


def test_an_agent_that_raises_is_blamed_with_the_place() -> None:
    def script(messages: Sequence[Message]) -> str:
        raise KeyError("answer")

    rollout = play(Env, ScriptedAgent(script))
    assert ended(rollout) == (Status.FAILED, StopReason.ENGINE_ERROR, None)
    line = script.__code__.co_firstlineno + 1
    assert rollout.error == f"the agent raised KeyError: 'answer' ({__file__}:{line})"


@pytest.mark.parametrize(
    "raised", [SystemExit(3), KeyboardInterrupt(), EOFError(), GeneratorExit(), CancelledError(), BaseException("odd")]
)
def test_whatever_a_script_raises_fails_its_episode_alone(raised: BaseException) -> None:
    def script(messages: Sequence[Message]) -> str:
        raise raised

    rollout = play(Env, ScriptedAgent(script))
    assert ended(rollout) == (Status.FAILED, StopReason.ENGINE_ERROR, None)
    assert str(rollout.error).startswith(f"the agent raised {type(raised).__name__}")


async def _later(messages: Sequence[Message]) -> str:
    return "42"


@pytest.mark.parametrize(
    ("script", "returned"),
    [
        (lambda _: None, "None"),
        (lambda _: {"content": "42"}, "{'content': '42'}"),
        (lambda _: Message("user", "42"), "Message(role='user', content='42', "),
        (lambda _: Message("assistant", 42), "Message(role='assistant', content=42, "),
        (_later, "<coroutine object _later"),
    ],
)
def test_a_script_that_returns_no_message_of_the_assistant_is_named(script: Any, returned: str) -> None:
    rollout = play(Env, ScriptedAgent(script, "rule.py:play"))
    assert ended(rollout) == (Status.FAILED, StopReason.ENGINE_ERROR, None)
    assert str(rollout.error).startswith(f"the script rule.py:play returned {returned}")
    assert str(rollout.error).endswith(": expected a text or a Message of the assistant")


def test_a_script_that_hangs_is_left_behind() -> None:
    async def main() -> None:
        runner = EpisodeRunner("env", Env, ScriptedAgent(lambda _: str(freed.wait(30))))
        with anyio.move_on_after(0.1) as scope:
            await runner.run(TASK, id="r", seed=0)
        assert scope.cancelled_caught

    start = time.monotonic()
    anyio.run(main)
    assert time.monotonic() - start < 10


def test_messages_that_cannot_be_rendered_are_the_agents_fault() -> None:
    assert play(Env, Player(RenderError("no"))).stop_reason is StopReason.ENGINE_ERROR


def test_a_session_that_cannot_begin_is_a_failure_too() -> None:
    class Away(Player):
        def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
            raise OSError("away")

    assert "the agent raised OSError: away" in str(play(Env, Away()).error)


def test_a_player_who_leaves_ends_everything() -> None:
    with pytest.raises(EOFError):
        play(Env, Player(EOFError()))  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["its constructor", "setup", "reset", "step"])
def test_environment_code_that_raises(where: str) -> None:
    class Broken(Env):
        def __init__(self) -> None:
            self.check("its constructor")

        def check(self, place: str) -> None:
            if place == where:
                raise ValueError("boom")

        def setup(self) -> None:
            self.check("setup")

        def reset(self, **options: Any) -> Any:
            self.check("reset")
            return super().reset(**options)

        def step(self, action: Message | str) -> Any:
            self.check("step")
            return super().step(action)

    rollout = play(Broken, Player(ANSWER))
    assert ended(rollout) == (Status.FAILED, StopReason.ENV_ERROR, None)
    assert str(rollout.error).startswith(f"test-v0: {where} raised ValueError: boom ({__file__}:")
    assert rollout.timings.started_at > 0


def test_a_factory_that_makes_no_environment() -> None:
    rollout = play(lambda: None, Player(ANSWER))  # type: ignore[arg-type, return-value]
    assert ended(rollout) == (Status.FAILED, StopReason.ENV_ERROR, None)
    assert rollout.error == "test-v0 is no MultiTurnEnv, but makes None"


def test_infrastructure_that_fails_in_a_tool_is_never_a_reward() -> None:
    rollout = play(Env, Player(WORK, calls("lose")))
    assert ended(rollout) == (Status.FAILED, StopReason.ENV_ERROR, None)
    assert rollout.error == "the sandbox is gone"
    assert not rollout.tool_faults


def test_a_turn_reward_that_is_no_number() -> None:
    rollout = play(Env, Player(calls("bribe")))
    assert ended(rollout) == (Status.FAILED, StopReason.SCORING_ERROR, None)
    assert "nan" in str(rollout.error)
    assert all(map(math.isfinite, rollout.turn_rewards))


def test_a_reward_that_is_no_number() -> None:
    class Env2(Env):
        @reward
        def luck(self, rollout: Rollout) -> float:
            return math.nan

    rollout = play(Env2, Player(ANSWER))
    assert ended(rollout) == (Status.FAILED, StopReason.SCORING_ERROR, None)
    assert rollout.rewards == {"correct": 1.0}


def test_a_judge_that_is_away_while_scoring() -> None:
    class Env2(Env):
        @reward
        def judge(self, rollout: Rollout) -> float:
            raise EngineError("the judge is away")

    rollout = play(Env2, Player(ANSWER))
    assert ended(rollout) == (Status.FAILED, StopReason.ENGINE_ERROR, None)
    assert rollout.messages[-1] == ANSWER


def test_a_close_that_raises_takes_no_reward_away() -> None:
    class Env2(Env):
        def close(self) -> None:
            raise ValueError("boom")

    rollout = play(Env2, Player(ANSWER))
    assert ended(rollout) == (Status.FINISHED, StopReason.ANSWERED, 1.0)
    assert str(rollout.error).startswith("test-v0: close raised ValueError: boom")


# The rest


def test_every_rollout_survives_a_round_trip_through_json() -> None:
    for turns in ([ANSWER], [calls("bribe")], [EngineError("x")], [WORK, calls("lose")]):
        rollout = play(Env, Player(*turns))  # type: ignore[arg-type]
        assert msgspec.json.decode(msgspec.json.encode(rollout), type=Rollout) == rollout


def test_tool_faults_are_in_the_rollout_whatever_the_end() -> None:
    fly = calls("fly")
    for last in (ANSWER, EngineError("x"), calls("lose")):
        [fault] = play(Env, Player(fly, last)).tool_faults
        assert (fault.tool, fault.kind, fault.count) == ("fly", "unknown_tool", 1)


def test_the_environment_is_closed_whatever_the_end() -> None:
    class Env2(Env):
        closed = 0

    ends: list[Message | Exception] = [ANSWER, calls("lose"), calls("bribe"), EngineError("x"), ContextFullError("x")]
    for count, last in enumerate(ends, 1):
        play(Env2, Player(last))
        assert Env2.closed == count


def test_the_time_is_told_apart() -> None:
    class Slow(Env):
        @tool
        def work(self) -> str:
            time.sleep(0.1)
            return ""

    class Thinking(Player):
        async def act(self, new_messages: Sequence[Message]) -> Turn:
            await anyio.sleep(0.05)
            return await super().act(new_messages)

    timings = play(Slow, Thinking(WORK, ANSWER)).timings
    assert 0.1 <= timings.generation < 0.3
    assert 0.1 <= timings.environment < 0.3
    assert timings.generation + timings.environment <= timings.total < 1
    assert abs(timings.started_at - time.time()) < 5


def test_cancellation_passes_through_and_closes_the_environment() -> None:
    class Env2(Env):
        closed = 0

    async def main() -> None:
        with anyio.move_on_after(0.05) as scope:
            await EpisodeRunner("test-v0", Env2, Player(calls("sleep"))).run(TASK, id="r", seed=0)
        assert scope.cancelled_caught

    anyio.run(main)
    assert Env2.closed == 1


@pytest.mark.parametrize("reason", ["stop", "abort"])
def test_other_finish_reasons_end_nothing(reason: FinishReason) -> None:
    assert play(Env, Player(Turn(WORK, reason), ANSWER)).status is Status.FINISHED


def test_what_an_environment_does_to_its_task_stays_in_its_episode() -> None:
    class Marked(Env):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            out = super().reset(seed=seed, options=options)
            assert "connection" not in self.task.info
            self.task.info["connection"] = object()
            return out

        @reward
        def correct(self, rollout: Rollout) -> float:
            rollout.task.info["scored"] = object()
            return 1.0

    async def main() -> None:
        task = msgspec.structs.replace(TASK, info={"known": 1})
        for _ in range(2):
            rollout = await EpisodeRunner("test-v0", Marked, Player(ANSWER)).run(task, id="r", seed=3)
            assert rollout.error is None
            assert (rollout.reward, rollout.task.info) == (1.0, {"known": 1})

    anyio.run(main)
