"""Environments with a sandbox: wherever authors' code runs, it can use it, and nothing of it outlives the episode.

The sandboxes are real ones, by the local provider. Where something is to fail, a provider that fails is in front.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from moonmill import Message, MultiTurnEnv, Rollout, Status, StopReason, ToolCall, reward, tool
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.config import SandboxConfig
from moonmill.envs.sandbox_service import SandboxService
from moonmill.errors import EnvCodeError
from moonmill.sandboxes import (
    SandboxLimits,
    SandboxSpec,
)
from tests.envs.parts import TASK, OneTask, call, says

DONE = Message("assistant", "done")


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Any:
    return lambda main: anyio.run(main, backend=request.param)


@pytest.fixture(autouse=True)
def service() -> Iterator[SandboxService]:
    with SandboxService() as service:
        yield service
        assert service.figures().in_use == 0


class Env(OneTask):
    """An environment with a sandbox, and tools that use it in both ways."""

    sandbox = SandboxSpec(files={"greeting.txt": "hello"})

    @tool
    def sh(self, text: str) -> str:
        return self.sandbox.exec(["sh", "-c", text]).stdout

    @tool
    async def ash(self, text: str) -> str:
        return (await self.sandbox.aio.exec(["sh", "-c", text])).stdout


def play(factory: Callable[[], MultiTurnEnv], *turns: Message | ToolCall, backend: str = "asyncio") -> Rollout:
    """Take these turns, then answer."""

    async def main() -> Rollout:
        return await episode(factory, *turns)

    return anyio.run(main, backend=backend)


async def episode(factory: Callable[[], MultiTurnEnv], *turns: Message | ToolCall) -> Rollout:
    messages = [says(turn) if isinstance(turn, ToolCall) else turn for turn in turns]

    def act(so_far: Sequence[Message]) -> Message:
        taken = sum(message.role == "assistant" for message in so_far)
        return messages[taken] if taken < len(messages) else DONE

    return await EpisodeRunner("test-v0", factory, ScriptedAgent(act)).run(TASK, id="r", seed=0)


def answers(rollout: Rollout) -> list[str]:
    return [message.content for message in rollout.messages if message.role == "tool"]


def ended(rollout: Rollout) -> tuple[Status, StopReason, float | None]:
    return rollout.status, rollout.stop_reason, rollout.reward


# Where it can be used


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_sync_and_async_tools_use_the_same_sandbox(backend: str) -> None:
    rollout = play(Env, call("sh", text="echo a > f"), call("ash", text="cat f greeting.txt"), backend=backend)
    assert answers(rollout) == ["", "a\nhello"]
    assert rollout.timings.sandbox > 0


def test_every_method_works_in_both_ways(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "x").write_text("x")

    class Both(Env):
        @tool
        def sync(self) -> str:
            box = self.sandbox
            box.write_file("d/a", "1", mode=0o600)
            box.write_files({"d/b": b"22"})
            box.upload(tmp_path / "up", "up")
            box.download("up", tmp_path / "down")
            assert box.lost == ""
            return f"{box.read_file('d/b')!r} {[f.path for f in box.list_files(recursive=True)]}"

        @tool
        async def there(self) -> str:
            box = self.sandbox.aio
            await box.write_file("d/a", "1", mode=0o600)
            await box.write_files({"d/b": b"22"})
            await box.upload(tmp_path / "up", "up")
            await box.download("up", tmp_path / "down")
            assert box.lost == ""
            return f"{await box.read_file('d/b')!r} {[f.path for f in await box.list_files(recursive=True)]}"

    said = "b'22' ['d', 'd/a', 'd/b', 'greeting.txt', 'up', 'up/x']"
    assert answers(play(Both, call("sync"))) == [said]
    assert answers(play(Both, call("there"))) == [said]
    assert (tmp_path / "down" / "x").read_text() == "x"


def test_setup_reset_step_rewards_and_close_can_use_it() -> None:
    seen: list[str] = []

    class Everywhere(Env):
        def look(self, where: str) -> None:
            self.sandbox.exec(["sh", "-c", f"echo {where} >> log"])
            seen[:] = self.sandbox.read_file("log").decode().split()

        def setup(self) -> None:
            self.look("setup")

        def reset(self, **options: Any) -> Any:
            self.look("reset")
            return super().reset(**options)

        def step(self, action: Message | str) -> Any:
            self.look("step")
            return super().step(action)

        @reward
        def correct(self, rollout: Rollout) -> float:
            self.look("reward")
            return 1.0

        def close(self) -> None:
            self.look("close")

    assert ended(play(Everywhere)) == (Status.FINISHED, StopReason.ANSWERED, 1.0)
    assert seen == ["setup", "reset", "step", "reward", "close"]


def test_async_overrides_and_rewards_can_use_it() -> None:
    class Async(Env):
        async def setup(self) -> None:
            await self.sandbox.aio.write_file("f", "1")

        async def step(self, action: Message | str) -> Any:
            await self.sandbox.aio.exec(["sh", "-c", "echo 2 >> f"])
            return await super().step(action)

        @reward
        async def correct(self, rollout: Rollout) -> float:
            return float((await self.sandbox.aio.read_file("f")) == b"12\n")

        async def close(self) -> None:
            await self.sandbox.aio.exec(["true"])

    assert ended(play(Async)) == (Status.FINISHED, StopReason.ANSWERED, 1.0)


def test_a_thread_of_the_authors_own_can_use_it() -> None:
    class Threads(Env):
        @tool
        def both(self) -> str:
            said: list[str] = []
            threads = [
                threading.Thread(target=lambda n=n: said.append(self.sandbox.exec(["echo", str(n)]).stdout))
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            said.append(self.sandbox.exec(["echo", "own"]).stdout)
            for thread in threads:
                thread.join()
            return "".join(sorted(said))

    assert answers(play(Threads, call("both"))) == ["0\n1\n2\n3\nown\n"]


def test_calls_of_async_tools_run_at_the_same_time() -> None:
    start = time.monotonic()
    rollout = play(Env, says(*(call("ash", str(n), text="sleep 0.5; echo hi") for n in range(6))))
    assert answers(rollout) == ["hi\n"] * 6
    assert time.monotonic() - start < 2.5


def test_a_blocking_call_in_async_code_is_refused_with_what_to_write() -> None:
    class Wrong(Env):
        @tool
        async def look(self) -> str:
            return self.sandbox.exec(["true"]).stdout

    rollout = play(Wrong, call("look"))
    assert ended(rollout) == (Status.FAILED, StopReason.ENV_ERROR, None)
    assert "await self.sandbox.aio.exec(" in (rollout.error or "")


def test_it_is_used_by_hand_as_well() -> None:
    env = Env()
    env.reset()
    observation, *_ = env.step(says(call("sh", "a", text="echo a > f"), call("ash", "b", text="cat f")))
    assert [m.content for m in observation] == ["", "a\n"]
    first = env.sandbox
    env.reset()  # as a new instance: another sandbox
    with pytest.raises(EnvCodeError, match="closed"):
        first.exec(["true"])
    observation, *_ = env.step(says(call("sh", text="ls")))
    assert observation[0].content == "greeting.txt\n"
    with env.open_sandbox() as other:
        assert other.exec(["cat", "greeting.txt"]).stdout == "hello"
    env.close()
    with pytest.raises(EnvCodeError, match="closed"):
        env.sandbox.exec(["true"])
    with pytest.raises(EnvCodeError, match="after the end"), env.open_sandbox():
        pass


def test_by_hand_it_works_within_a_running_event_loop() -> None:
    async def notebook() -> str:
        env = Env()
        env.reset()
        observation, *_ = env.step(says(call("ash", text="cat greeting.txt")))
        env.close()
        return str(observation[0].content)

    assert anyio.run(notebook) == "hello"


def test_an_environment_that_is_forgotten_leaves_no_sandbox_open(service: SandboxService) -> None:
    env = Env()
    env.reset()
    assert service.figures().in_use == 1
    del env
    gc.collect()
    until(lambda: service.figures().in_use == 0)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# What is asked for


def test_the_constructor_can_decide_what_it_is_like() -> None:
    class Sized(OneTask):
        def __init__(self, name: str) -> None:
            self.sandbox = SandboxSpec(files={name: "x"})

        @tool
        def look(self) -> str:
            return str(self.sandbox.exec(["ls"]).stdout)

    assert answers(play(lambda: Sized("mine"), call("look"))) == ["mine\n"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("python:3.12", "is 'python:3.12', but should be a SandboxSpec"),
        (SandboxSpec, r"write SandboxSpec\(\)"),
        (property(lambda self: SandboxSpec()), "but should be a SandboxSpec"),
        (SandboxSpec(workdir="here"), "workdir is 'here', but should be an absolute path"),
        (SandboxSpec(limits=SandboxLimits(memory_mib=0)), "memory_mib"),
        (SandboxSpec(env={"A=B": "c"}), "env is"),
        (SandboxSpec(files={"a": 1}), "files is"),  # type: ignore[dict-item]
        (SandboxSpec(network="all"), "should be 'none' or 'open'"),  # type: ignore[arg-type]
    ],
)
def test_what_can_be_no_sandbox_is_refused_when_the_class_is_defined(value: Any, said: str) -> None:
    with pytest.raises(EnvCodeError, match=rf"^Wrong\.sandbox.*{said}"):
        type("Wrong", (OneTask,), {"sandbox": value})


def test_one_that_is_set_in_the_constructor_is_looked_at_too() -> None:
    class Wrong(OneTask):
        def __init__(self) -> None:
            self.sandbox = "python:3.12"  # type: ignore[assignment]

    rollout = play(Wrong)
    assert rollout.stop_reason is StopReason.ENV_ERROR
    assert "Wrong.sandbox is 'python:3.12', but should be a SandboxSpec, or None" in (rollout.error or "")


def test_setup_and_the_task_can_decide_as_well(service: SandboxService) -> None:
    class Setup(Env):
        sandbox: SandboxSpec

        def setup(self) -> None:
            self.sandbox = SandboxSpec(files={"by-setup": ""})

    class Reset(Env):
        sandbox: SandboxSpec

        def reset(self, **options: Any) -> Any:
            self.sandbox = SandboxSpec(files={f"task-{self.task.answer}": ""})
            prompt = super().reset(**options)
            self.sandbox.write_file("by-reset", "")
            return prompt

    class AtItsEnd(Env):
        sandbox: SandboxSpec

        async def reset(self, **options: Any) -> Any:
            prompt = await super().reset(**options)
            await self.sandbox.aio.write_file("by-reset", "")
            assert service.figures().in_use == 1
            self.sandbox = SandboxSpec(files={"at-its-end": ""})
            return prompt

    assert answers(play(Setup, call("sh", text="ls"))) == ["by-setup\n"]
    assert answers(play(Reset, call("sh", text="ls"))) == ["by-reset\ntask-42\n"]
    assert answers(play(AtItsEnd, call("sh", text="ls; : at most one at a time"))) == ["at-its-end\n"]


def test_no_sandbox_is_opened_that_is_replaced_before_its_use(service: SandboxService) -> None:
    class Reset(Env):
        sandbox = SandboxSpec(files={"of-the-class": ""})

        def setup(self) -> None:
            self.kept = self.sandbox

        def reset(self, **options: Any) -> Any:
            self.sandbox = SandboxSpec(files={"of-the-task": ""})
            return super().reset(**options)

        @tool
        def look_back(self) -> str:
            return self.kept.lost or str(self.kept.list_files())

    rollout = play(Reset, call("sh", text="ls"), call("look_back"))
    assert answers(rollout)[0] == "of-the-task\n"
    assert service.figures().created == 1
    assert "a sandbox was used that is closed" in answers(rollout)[1] or "it is closed" in answers(rollout)[1]


def test_what_the_provider_cannot_honour_makes_the_rollout_fail() -> None:
    class Imaged(OneTask):
        sandbox = SandboxSpec(image="python:3.12")

    rollout = play(Imaged)
    assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert "python:3.12" in (rollout.error or "")


def test_a_tool_cannot_have_its_name() -> None:
    from moonmill.errors import ToolDefinitionError

    with pytest.raises(ToolDefinitionError, match="open_sandbox"):

        class Wrong(OneTask):
            @tool
            def open_sandbox(self) -> str:  # type: ignore[override]
                return ""


# Another sandbox, for graders


def test_a_grader_gets_a_fresh_sandbox_that_the_model_cannot_reach() -> None:
    class Graded(Env):
        @reward
        def correct(self, rollout: Rollout) -> float:
            mine = self.sandbox.read_file("answer")
            with self.open_sandbox(SandboxSpec(files={"hidden": "42"})) as fresh:
                fresh.write_file("answer", mine)
                assert fresh.exec(["ls"]).stdout == "answer\nhidden\n"
                same = fresh.exec(["cmp", "answer", "hidden"]).returncode == 0
            assert self.sandbox.exec(["ls"]).stdout == "answer\ngreeting.txt\n"
            return float(same)

    assert play(Graded, call("sh", text="printf 42 > answer")).reward == 1.0
    assert play(Graded, call("sh", text="printf 43 > answer")).reward == 0.0


def test_async_code_opens_one_as_well_and_needs_none_of_its_own(service: SandboxService) -> None:
    class Graded(OneTask):
        @reward
        async def correct(self, rollout: Rollout) -> float:
            async with self.open_sandbox(SandboxSpec()) as fresh, self.open_sandbox(SandboxSpec()) as other:
                await fresh.write_file("f", "1")
                return float((await other.exec(["ls"])).stdout == "")

    assert play(Graded).reward == 1.0
    assert service.figures().in_use == 0


def test_without_anything_to_go_by_none_is_opened() -> None:
    class Graded(OneTask):
        @reward
        def correct(self, rollout: Rollout) -> float:
            with self.open_sandbox():
                return 1.0

    rollout = play(Graded)
    assert rollout.status is Status.FAILED
    assert "open_sandbox() has nothing to go by" in (rollout.error or "")


# Limits


@pytest.mark.parametrize("name", ["sh", "ash"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_time_limit_ends_a_call_at_once_and_the_episode_is_scored(name: str, backend: str) -> None:
    class Limited(Env):
        max_seconds = 0.5

        @reward
        def still_there(self, rollout: Rollout) -> float:
            # What the call had started is gone; the sandbox is not.
            return float("sleep" not in self.sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout)

    start = time.monotonic()
    rollout = play(Limited, call(name, text="sleep 50; true"), backend=backend)
    assert ended(rollout) == (Status.TRUNCATED, StopReason.TIME_LIMIT, 1.0)
    assert time.monotonic() - start < 5


def test_a_command_that_takes_too_long_is_an_answer_for_the_model() -> None:
    class Impatient(Env):
        @tool
        def wait(self) -> str:
            return self.sandbox.exec(["sh", "-c", "echo so far; sleep 50"], timeout=0.3).stdout

    rollout = play(Impatient, call("wait"))
    assert rollout.status is Status.FINISHED
    assert answers(rollout)[0].startswith("error: ExecTimeoutError: sh ran into its time-out")
    assert rollout.tool_faults[0].kind == "ExecTimeoutError"


def test_cancelling_in_async_code_ends_the_call_and_the_sandbox_goes_on() -> None:
    class Patient(Env):
        @tool
        async def wait(self) -> str:
            with anyio.move_on_after(0.2):
                await self.sandbox.aio.exec(["sleep", "50"])
            return (await self.sandbox.aio.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"])).stdout

    assert "sleep" not in answers(play(Patient, call("wait")))[0]


@pytest.mark.parametrize("in_async", [False, True])
def test_waiting_for_a_place_counts_against_no_limit(in_async: bool) -> None:
    class Slow(OneTask):
        max_seconds = max_scoring_seconds = 2.5

        @tool
        async def work(self) -> str:
            async with self.open_sandbox(SandboxSpec()) as fresh:
                return (await fresh.exec(["sh", "-c", "sleep 1; echo worked"])).stdout

        @reward
        def correct(self, rollout: Rollout) -> float:
            if not in_async:
                with self.open_sandbox(SandboxSpec()) as fresh:
                    fresh.exec(["sleep", "1"])
            return 1.0

    async def main() -> list[Rollout]:
        rollouts: list[Rollout] = []

        async def one() -> None:
            rollouts.append(await episode(Slow, *([call("work")] if in_async else [])))

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(one)
        return rollouts

    with SandboxService(SandboxConfig(max_open=1)):
        rollouts = anyio.run(main)
    assert [ended(r) for r in rollouts] == [(Status.FINISHED, StopReason.ANSWERED, 1.0)] * 4
    assert max(r.timings.sandbox for r in rollouts) > 2.5


def test_episodes_that_hold_one_do_not_wait_for_those_that_wait_for_their_first() -> None:
    class Graded(Env):
        @reward
        def correct(self, rollout: Rollout) -> float:
            with self.open_sandbox() as fresh:
                return float(fresh.exec(["true"]).returncode == 0)

    async def main() -> list[Rollout]:
        found: list[Rollout] = []

        async def one() -> None:
            found.append(await episode(Graded))

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(one)
        return found

    with SandboxService(SandboxConfig(max_open=2, open_timeout=20)):
        assert [r.reward for r in anyio.run(main)] == [1.0] * 6


def test_a_place_is_not_waited_for_for_ever() -> None:
    class Holding(Env):
        @tool
        async def hold(self) -> None:
            await anyio.sleep(2)

    async def main() -> Rollout:
        async with anyio.create_task_group() as group:
            group.start_soon(episode, Holding, call("hold"))
            await anyio.sleep(0.7)
            late = await episode(Env)
            group.cancel_scope.cancel()
        return late

    with SandboxService(SandboxConfig(max_open=1, open_timeout=0.5)):
        late = anyio.run(main)
    assert ended(late) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert "no sandbox became free in 0.5 s (sandbox.open_timeout): all 1 are in use" in (late.error or "")
