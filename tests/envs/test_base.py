"""`MultiTurnEnv` used by hand: what an author sees in a script or a notebook."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from moonmill import Message, MoonmillError, MultiTurnEnv, Rollout, Task, ToolCall, ToolFault, reward, stop, tool
from moonmill.envs.returned import as_observation
from moonmill.errors import EnvCodeError, EpisodeOverError, RewardError, ToolDefinitionError
from moonmill.sandboxes import ExecResult
from tests.envs.parts import TASK, OneTask, call, says


class SandboxLostError(MoonmillError):
    """The infrastructure is gone."""


class Workshop(OneTask):
    """Some tools."""

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tool
    def divide(self, a: int, b: int) -> float:
        return a / b

    @tool
    def submit(self, answer: int) -> str:
        self.finish(reward=float(answer == self.task.answer))
        return "thank you"

    @tool
    def lose(self) -> None:
        raise SandboxLostError("the sandbox is gone")

    @tool
    async def lose_async(self) -> None:
        raise SandboxLostError("the sandbox is gone")

    @tool
    async def wait(self, seconds: float) -> str:
        await anyio.sleep(seconds)
        return f"waited {seconds}"


def begun(env: MultiTurnEnv) -> MultiTurnEnv:
    env.reset(options={"task": TASK})
    return env


def answers(env: MultiTurnEnv, *calls: ToolCall) -> list[str]:
    """What the calls of one turn are answered with."""
    return [message.content for message in begun(env).step(says(*calls))[0]]


# Beginning


def test_reset_gives_the_prompt_and_an_empty_info() -> None:
    assert OneTask().reset() == ((Message("user", "go"),), {})


def test_a_prompt_may_be_messages() -> None:
    prompt = (Message("user", "2+2?"), Message("assistant", "4"), Message("user", "3+3?"))
    assert OneTask().reset(options={"task": Task(prompt)})[0] == prompt


def test_the_system_prompt_stands_before_the_task() -> None:
    class Env(OneTask):
        system_prompt = "Be brief."

    assert Env().reset()[0] == (Message("system", "Be brief."), Message("user", "go"))


def test_a_task_with_a_system_message_of_its_own_keeps_it_alone() -> None:
    class Env(OneTask):
        system_prompt = "Be brief."

    prompt = (Message("system", "Be long."), Message("user", "go"))
    assert Env().reset(options={"task": Task(prompt)})[0] == prompt


def test_without_a_task_reset_takes_the_next_of_the_split() -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> Iterator[Task]:
            yield Task(f"{split} one")
            yield Task(f"{split} two")

    env = Env()
    prompts = [env.reset(options=options)[0][0].content for options in ({}, {"split": "eval"}, None, None)]
    assert prompts == ["train one", "eval one", "train two", "train one"]
    assert (env.task.id, env.task.split) == ("train-0", "train")  # it comes again


def test_a_split_without_tasks_is_an_error() -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> Iterator[Task]:
            yield from ()

    with pytest.raises(MoonmillError, match="Env has no tasks in the split 'train'"):
        Env().reset()


def test_a_task_of_another_type_is_an_error() -> None:
    with pytest.raises(EnvCodeError, match=r"options\['task'\] should be a Task"):
        OneTask().reset(options={"task": "go"})


def test_the_rng_is_the_episodes_own() -> None:
    first, second = OneTask(), OneTask()
    first.reset(seed=5)
    second.reset(seed=5)
    assert [first.rng.random() for _ in range(3)] == [second.rng.random() for _ in range(3)]
    second.reset(seed=6)
    assert first.rng.random() != second.rng.random()


# Steps


def test_a_message_without_a_tool_call_is_the_answer() -> None:
    assert begun(OneTask()).step("42") == ((), 0.0, True, False, {})


def test_a_tool_call_is_answered_and_the_episode_goes_on() -> None:
    env = begun(Workshop())
    observation, reward, terminated, truncated, _ = env.step(says(call("add", "c7", a=1, b=2)))
    assert observation == (Message("tool", "3", tool_call_id="c7", name="add"),)
    assert (reward, terminated, truncated) == (0.0, False, False)


def test_the_conversation_is_kept() -> None:
    env = begun(Workshop())
    turn = says(call("add", a=1, b=2))
    [answer] = env.step(turn)[0]
    env.step("3")
    assert env.messages == [Message("user", "go"), turn, answer, Message("assistant", "3")]


def test_two_calls_are_answered_in_order_by_id_though_one_fails() -> None:
    env = begun(Workshop())
    observation = env.step(says(call("divide", "a", a=1, b=0), call("add", "b", a=1, b=2)))[0]
    assert [(m.tool_call_id, m.content) for m in observation] == [
        ("a", "error: ZeroDivisionError: division by zero"),
        ("b", "3"),
    ]


def test_sync_and_async_tools_are_answered_in_order() -> None:
    calls = call("wait", "a", seconds=0.02), call("add", "b", a=1, b=1), call("wait", "c", seconds=0)
    assert answers(Workshop(), *calls) == ["waited 0.02", "2", "waited 0.0"]


def test_async_tools_of_one_turn_run_at_the_same_time() -> None:
    start = time.monotonic()
    calls = [call("wait", str(i), seconds=0.3 - i / 100) for i in range(10)]
    assert answers(Workshop(), *calls) == [f"waited {0.3 - i / 100}" for i in range(10)]
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (None, ""),
        ({"a": [1]}, '{"a":[1]}'),
        (1.5, "1.5"),
        (Task("t"), '{"prompt":"t"}'),
        (1j, '"1j"'),
        (b"caf\xc3\xa9 \xff", "café \N{REPLACEMENT CHARACTER}"),
        (ExecResult(3, b"out\n", b"", False, False, 0.1), "out\n[exit code 3]"),
    ],
)
def test_a_result_is_text_or_json(result: Any, text: str) -> None:
    class Env(OneTask):
        @tool
        def give(self) -> Any:
            return result

    assert answers(Env(), call("give")) == [text]


def test_an_async_tool_behind_a_plain_decorator_is_awaited() -> None:
    def plain(method: Any) -> Any:
        def wrapper(self: Any) -> Any:
            return method(self)

        return wrapper

    class Env(OneTask):
        @tool
        @plain
        async def give(self) -> str:
            return "given"

    assert answers(Env(), call("give")) == ["given"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (ToolCall("1", "fly", {}), "error: there is no tool 'fly'; the tools are: add, divide, submit"),
        (
            ToolCall("1", "add", {"a": "1", "b": 2}),
            "error: wrong arguments for add: Expected `int`, got `str` - at `a`",
        ),
        (ToolCall("1", "add", "{'a': 1}"), "error: wrong arguments for add: they are not JSON"),
        (ToolCall("1", "add", "", error="no closing tag"), "error: the call could not be read: no closing tag"),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_and_the_episode_goes_on(bad: ToolCall, words: str) -> None:
    env = begun(Workshop())
    observation, _, terminated, truncated, _ = env.step(says(bad))
    assert observation[0].content.startswith(words)
    assert not terminated
    assert not truncated
    assert env.step(says(call("add", a=1, b=2)))[0][0].content == "3"


def test_a_json_string_of_json_is_read() -> None:
    assert answers(Workshop(), ToolCall("1", "add", '"{\\"a\\": 1, \\"b\\": 2}"')) == ["3"]


def test_max_turns_truncates() -> None:
    class Env(Workshop):
        max_turns = 2

    env = begun(Env())
    turn = says(call("add", a=1, b=2))
    assert env.step(turn)[2:4] == (False, False)
    assert env.step(turn)[2:4] == (False, True)
    with pytest.raises(EpisodeOverError):
        env.step(turn)


def test_an_answer_in_the_last_turn_is_an_answer() -> None:
    class Env(Workshop):
        max_turns = 1

    assert begun(Env()).step("42")[2:4] == (True, False)


def test_a_turn_cut_by_length_truncates_and_runs_no_tool() -> None:
    env = begun(Workshop())
    env.finish_reason = "length"
    assert env.step(says(call("submit", answer=42))) == ((), 0.0, False, True, {})


# Ending


def test_a_tool_ends_the_episode_with_a_reward() -> None:
    env = begun(Workshop())
    observation, reward, terminated, truncated, _ = env.step(says(call("submit", answer=42)))
    assert observation[0].content == "thank you"
    assert (reward, terminated, truncated) == (1.0, True, False)


def test_the_other_calls_of_the_last_turn_are_still_answered() -> None:
    assert answers(Workshop(), call("submit", "a", answer=42), call("add", "b", a=1, b=2)) == ["thank you", "3"]


@pytest.mark.parametrize("last", ["42", says(call("submit", answer=1))])
def test_a_step_after_the_end_raises(last: Any) -> None:
    env = begun(Workshop())
    env.step(last)
    with pytest.raises(EpisodeOverError, match=r"Workshop\.step was called, but the episode is over"):
        env.step("again")


def test_a_step_before_reset_raises() -> None:
    with pytest.raises(EpisodeOverError, match="call reset first"):
        OneTask().step("42")


def test_tools_add_to_the_turns_reward() -> None:
    class Env(OneTask):
        @tool
        def find(self) -> str:
            self.add_reward(0.25)
            return "found"

    env = begun(Env())
    assert env.step(says(call("find", "a"), call("find", "b")))[1] == 0.5
    assert env.step("done")[1] == 0.0


def test_there_is_no_reward_outside_of_a_turn() -> None:
    env = begun(OneTask())
    with pytest.raises(EpisodeOverError, match="only within a step"):
        env.add_reward(1.0)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stop_method_ends_the_episode(kind: str) -> None:
    class Sync(Workshop):
        @stop
        def enough(self) -> bool:
            return len(self.messages) > 3

    class Async(Workshop):
        @stop
        async def enough(self) -> bool:
            await anyio.lowlevel.checkpoint()
            return len(self.messages) > 3

    env = begun(Sync() if kind == "sync" else Async())
    turn = says(call("add", a=1, b=2))
    assert [env.step(turn)[2] for _ in range(2)] == [False, True]


# Faults


def faults(env: MultiTurnEnv, *calls: ToolCall) -> tuple[ToolFault, ...]:
    begun(env).step(says(*calls))
    return env._moonmill.faults.faults


def test_faults_are_counted_by_tool_and_kind_with_the_place() -> None:
    broken = call("divide", a=1, b=0)
    unknown, wrong = call("fly"), call("add", a=1)
    zero, fly, add = faults(Workshop(), broken, unknown, broken, wrong)
    assert (zero.tool, zero.kind, zero.count) == ("divide", "ZeroDivisionError", 2)
    line = Workshop.divide.__code__.co_firstlineno + 2
    assert zero.example == f"division by zero ({__file__}:{line})"
    assert (fly.tool, fly.kind, fly.count) == ("fly", "unknown_tool", 1)
    assert (add.tool, add.kind, add.count) == ("add", "invalid_arguments", 1)


def test_the_place_is_the_authors_line_also_where_a_library_raises() -> None:
    import json

    class Env(OneTask):
        @tool
        def read(self) -> Any:
            return json.loads("{")

    [fault] = faults(Env(), call("read"))
    assert f"({__file__}:{Env.read.__code__.co_firstlineno + 2}, raised in " in fault.example
    assert "decoder.py" in fault.example


def test_sys_exit_in_a_tool_is_a_fault_like_any_other() -> None:
    class Env(OneTask):
        @tool
        def leave(self) -> None:
            raise SystemExit(3)

        @tool
        async def leave_async(self) -> None:
            raise SystemExit(3)

    assert answers(Env(), call("leave"), call("leave_async")) == ["error: SystemExit: 3"] * 2


def test_a_long_message_is_clipped_in_the_record_but_not_for_the_model() -> None:
    class Env(OneTask):
        @tool
        def shout(self) -> None:
            raise ValueError("A" * 10_000)

    env = Env()
    assert len(answers(env, call("shout"))[0]) > 10_000
    assert len(env._moonmill.faults.faults[0].example) < 1000


@pytest.mark.parametrize("name", ["lose", "lose_async"])
def test_an_error_of_ours_in_a_tool_is_not_for_the_model(name: str) -> None:
    with pytest.raises(SandboxLostError, match="the sandbox is gone"):
        begun(Workshop()).step(says(call(name)))


def test_an_error_of_ours_among_async_calls_comes_out_as_itself() -> None:
    with pytest.raises(SandboxLostError):
        begun(Workshop()).step(says(call("wait", "a", seconds=5), call("lose_async", "b"), call("lose_async", "c")))


def test_an_error_of_ours_inside_a_group_comes_out_as_itself() -> None:
    class Env(Workshop):
        @tool
        async def both(self) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(self.lose_async)
                group.start_soon(anyio.sleep, 5)

    with pytest.raises(SandboxLostError):
        begun(Env()).step(says(call("both")))


# Nothing leaks into the next episode


def test_a_second_reset_begins_as_a_new_instance_would() -> None:
    class Env(OneTask):
        def __init__(self, size: int) -> None:
            self.board = [[0] * size]
            self.opened = 0

        def setup(self) -> None:
            self.opened += 1

        @tool
        def put(self) -> int:
            self.board[0].append(1)
            self.count = getattr(self, "count", 0) + 1
            return self.count

    env = Env(2)
    for seed in range(3):
        assert env.reset(seed=seed)[0] == (Message("user", "go"),)
        assert env.messages == [Message("user", "go")]
        assert (env.board, env.opened, hasattr(env, "count")) == ([[0, 0]], 1, False)
        assert env.step(says(call("put")))[0][0].content == "1"
        assert env.step("done")[2]
    assert faults(env, call("fly"))[0].count == 1


def test_a_second_reset_closes_what_the_first_opened() -> None:
    events: list[str] = []

    class Env(OneTask):
        def setup(self) -> None:
            events.append("setup")

        async def close(self) -> None:
            events.append("close")

    env = Env()
    env.setup()
    env.reset()
    env.reset()
    env.close()
    env.close()
    assert events == ["setup", "close", "setup", "close"]


def test_the_seed_of_the_taskset_outlives_a_reset() -> None:
    env = OneTask()
    env.taskset_seed = 7
    env.reset()
    env.reset()
    assert env.taskset_seed == 7


def test_the_authors_attributes_may_have_any_name() -> None:
    class Env(Workshop):
        def __init__(self) -> None:
            self._turns = self._turn = self._step = self._tools = self._over = self._episode = None

    assert answers(Env(), call("add", a=1, b=2)) == ["3"]


# Overrides


class Guess(OneTask):
    """A game without tools: `step` answers with a text."""

    def step(self, action: Message | str) -> Any:
        assert isinstance(action, Message)
        if action.content == str(self.task.answer):
            return None, 1.0, True, False, {}
        return "try again", -0.1, False, False, {}


def test_an_override_may_answer_with_a_text() -> None:
    env = begun(Guess())
    assert env.step("1") == ((Message("user", "try again"),), -0.1, False, False, {})
    assert env.step("42") == ((), 1.0, True, False, {})
    assert [m.content for m in env.messages] == ["go", "1", "try again", "42"]
    with pytest.raises(EpisodeOverError):
        env.step("42")


def test_an_override_that_asks_nobody_is_bounded_all_the_same() -> None:
    class Env(Guess):
        max_turns = 2

    env = begun(Env())
    assert [env.step("1")[3] for _ in range(2)] == [False, True]


def test_a_stop_method_is_asked_after_an_override() -> None:
    class Env(Guess):
        @stop
        def enough(self) -> bool:
            return self.messages[-1].content == "try again"

    assert begun(Env()).step("1")[2]


def test_an_override_may_go_on_where_super_would_end() -> None:
    class Env(Workshop):
        def step(self, action: Message | str) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            assert terminated is not bool(observation)
            return (*observation, Message("user", "go on")), reward + 1, False, truncated, info

    env = begun(Env())
    for turn in ("a", says(call("add", a=1, b=2)), "b"):
        observation, reward, terminated, _, _ = env.step(turn)
        assert (observation[-1].content, reward, terminated) == ("go on", 1.0, False)
    assert [m.role for m in env.messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
        "user",
    ]


def test_a_tool_that_finishes_wins_over_an_override() -> None:
    class Env(Workshop):
        def step(self, action: Message | str) -> Any:
            observation, reward, _, truncated, info = super().step(action)
            return observation, reward, False, truncated, info

    assert begun(Env()).step(says(call("submit", answer=42)))[1:3] == (1.0, True)


def test_an_override_may_reward_and_finish_as_tools_do() -> None:
    class Env(OneTask):
        def step(self, action: Message | str) -> Any:
            self.add_reward(0.5)
            self.finish(reward=0.25)
            return "", 0.25, False, False, {}

    assert begun(Env()).step("x")[1:3] == (1.0, True)


class AsyncGuess(Workshop):
    """Everything async that can be."""

    async def setup(self) -> None:
        self.lock = anyio.Lock()

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        await anyio.lowlevel.checkpoint()
        observation, info = await super().reset(seed=seed, options=options)
        return (*observation, Message("user", "guess")), info

    async def step(self, action: Message | str) -> Any:
        async with self.lock:
            observation, reward, _, truncated, info = await super().step(action)
        return (*observation, Message("user", "more")), reward, False, truncated, info


def play_async_guess() -> list[str]:
    env = AsyncGuess()
    prompt, _ = env.reset()
    assert [m.content for m in prompt] == ["go", "guess"]
    observation, _, terminated, _, _ = env.step(says(call("add", "a", a=1, b=2), call("wait", "b", seconds=0)))
    assert not terminated
    env.close()
    return [m.content for m in observation]


def test_async_overrides_look_the_same_from_outside() -> None:
    assert play_async_guess() == ["3", "waited 0.0", "more"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_environment_can_be_used_by_hand_where_an_event_loop_runs_as_in_a_notebook(backend: str) -> None:
    async def cell() -> list[str]:
        return play_async_guess()

    assert anyio.run(cell, backend=backend) == ["3", "waited 0.0", "more"]


def test_by_hand_sync_tools_run_where_they_are_called() -> None:
    class Env(OneTask):
        @tool
        def where(self) -> str:
            return threading.current_thread().name

    assert answers(Env(), call("where")) == [threading.current_thread().name]


def test_a_mixture_of_sync_and_async_step_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match=r"Env\.step is async, but Guess\.step, which it overrides, is sync"):

        class Env(Guess):
            async def step(self, action: Message | str) -> Any:
                return await super().step(action)


@pytest.mark.parametrize("values", [None, "text", (1, 2), ("", 0.0, True, False)])
def test_a_step_that_returns_something_else_is_told_what_it_should(values: Any) -> None:
    class Env(OneTask):
        def step(self, action: Message | str) -> Any:
            return values

    with pytest.raises(EnvCodeError, match=r"Env\.step returned .* should return \(observation, reward, terminated"):
        begun(Env()).step("x")


@pytest.mark.filterwarnings("ignore:coroutine 'ByHand.run' was never awaited")
def test_a_super_step_that_is_not_awaited_is_told_so() -> None:
    class Env(OneTask):
        async def step(self, action: Message | str) -> Any:
            return super().step(action)

    with pytest.raises(EnvCodeError, match=r"await super\(\)\.step\(action\)"):
        begun(Env()).step("x")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (Message("bot", "x"), r"Invalid enum value 'bot' - at `\$\.role`"),  # type: ignore[arg-type]
        (Message("user", "x", name=5), r"got `int` - at `\$\.name`"),  # type: ignore[arg-type]
        (Message("user", None), "NoneType"),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_could_not_be_read_from_a_log_again_is_refused(message: Message, told: str) -> None:
    with pytest.raises(EnvCodeError, match=rf"step returned Message\(.* not as a Message should be: .*{told}"):
        as_observation("step", message)


@pytest.mark.parametrize("observation", [5, [1], {"role": "user"}])
def test_an_observation_of_another_kind_is_refused(observation: Any) -> None:
    class Env(OneTask):
        def step(self, action: Message | str) -> Any:
            return observation, 0.0, False, False, {}

    with pytest.raises(EnvCodeError, match="an observation is a text, a Message, a sequence of Messages or None"):
        begun(Env()).step("x")


@pytest.mark.parametrize("value", [None, "1", float("nan")])
def test_a_step_reward_that_is_no_number_is_refused(value: Any) -> None:
    class Env(OneTask):
        def step(self, action: Message | str) -> Any:
            return "", value, False, False, {}

    with pytest.raises(RewardError, match=rf"Env\.step returned .*{value}.*finite number"):
        begun(Env()).step("x")


def test_rewards_can_be_called_by_hand() -> None:
    class Env(OneTask):
        @reward
        def correct(self, rollout: Rollout) -> float:
            return float(rollout.final_number() == self.task.answer)

    env = Env()
    env.reset()
    env.step("42")
    rollout = Rollout("r", "e", env.task, "finished", "answered", messages=tuple(env.messages))  # type: ignore[arg-type]
    assert env.correct(rollout) == 1.0
