"""Author's code that misbehaves spoils its own episode at most: never its neighbours, never the run."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from moonmill import Message, MultiTurnEnv, Rollout, Status, Task, Taskset, ToolCall, reward, tool
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.errors import EnvCodeError
from moonmill.jsonl import JsonlWriter, read_jsonl


class Oops(BaseException):
    """Not even an Exception."""


class MuteError(Exception):
    """Fails at saying what it is."""

    def __str__(self) -> str:
        raise self


class Trap(str):
    """A text that raises at whatever is done to it."""

    def __len__(self) -> int:
        raise RuntimeError("touched")

    isascii = encode = __str__ = __format__ = __getitem__ = __len__  # type: ignore[assignment]


class TrapError(Exception):
    """Says a trap."""

    def __str__(self) -> str:
        return Trap("boom")


class Hostile(MultiTurnEnv):
    def tasks(self, split: str) -> Iterator[Task]:
        yield Task("go")

    @tool
    async def cancels_itself(self) -> str:
        """Await a task of one's own that was cancelled."""
        task = asyncio.create_task(asyncio.sleep(9))
        task.cancel()
        await task
        return "unreachable"

    @tool
    def raises_cancelled(self) -> str:
        """Raise what a cancellation raises."""
        raise asyncio.CancelledError

    @tool
    def raises_base(self) -> str:
        """Raise what nobody catches."""
        raise Oops("base")

    @tool
    def says_surrogate(self) -> str:
        """Give what UTF-8 cannot say."""
        return "a\ud800b"

    @tool
    def raises_surrogate(self) -> str:
        """The same, as an error."""
        raise ValueError("\udcff")

    @tool
    def raises_mute(self) -> str:
        """Raise what has no text."""
        raise MuteError

    @tool
    async def raises_trap(self) -> str:
        """Raise what has a text of its own."""
        raise TrapError

    @tool
    def says_trap(self) -> str:
        """Give a text of one's own."""
        return Trap("spoken")


def play(*tools: str) -> list[Rollout]:
    """One episode for each tool, all at once: it calls the tool, then answers."""

    async def main() -> list[Rollout]:
        rollouts: list[Rollout] = []

        async def one(name: str) -> None:
            call = Message("assistant", tool_calls=(ToolCall("1", name),))
            agent = ScriptedAgent(lambda messages: call if len(messages) == 1 else "done")
            rollouts.append(await EpisodeRunner("hostile", Hostile, agent).run(Task("go"), id=name, seed=0))

        async with anyio.create_task_group() as group:
            for name in tools:
                group.start_soon(one, name)
        return rollouts

    return anyio.run(main)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cancels_itself", "CancelledError"),
        ("raises_cancelled", "CancelledError"),
        ("raises_base", "Oops"),
        ("raises_mute", "MuteError"),
        ("raises_trap", "TrapError"),
    ],
)
def test_what_a_tool_raises_is_told_to_the_model_whatever_it_is(name: str, kind: str) -> None:
    [rollout] = play(name)
    assert rollout.status is Status.FINISHED
    assert [(f.tool, f.kind) for f in rollout.tool_faults] == [(name, kind)]
    assert rollout.messages[2].content.startswith(f"error: {kind}")


def test_neighbours_of_a_tool_that_cancels_go_on() -> None:
    rollouts = play("cancels_itself", *["says_surrogate"] * 5)
    assert [r.status for r in rollouts] == [Status.FINISHED] * 6


@pytest.mark.parametrize("name", ["says_surrogate", "raises_surrogate", "raises_mute", "raises_trap", "says_trap"])
def test_text_that_no_log_can_hold_is_made_one_it_can(name: str, tmp_path: Path) -> None:
    [rollout] = play(name)
    log = JsonlWriter(tmp_path / "log.jsonl")
    log.append(rollout)
    log.close()
    assert list(read_jsonl(tmp_path / "log.jsonl", Rollout)) == [rollout]


def test_what_an_error_says_is_told_if_it_can_be_had() -> None:
    [mute], [trap], [spoken] = play("raises_mute"), play("raises_trap"), play("says_trap")
    assert mute.messages[2].content == "error: MuteError: (its text cannot be had)"
    assert trap.messages[2].content == "error: TrapError: boom"
    assert spoken.messages[2].content == "spoken"
    assert not spoken.tool_faults


@pytest.mark.parametrize("error", [MuteError(), TrapError(), ValueError("\udcff"), EnvCodeError("\udcff")])
def test_a_reward_that_raises_what_no_log_can_hold_fails_its_rollout_alone(error: Exception, tmp_path: Path) -> None:
    class Unscored(Hostile):
        @reward
        def fails(self, rollout: Rollout) -> float:
            raise error

    agent = ScriptedAgent(lambda messages: "done")
    rollout = anyio.run(partial(EpisodeRunner("unscored", Unscored, agent).run, Task("go"), id="0", seed=0))
    assert (rollout.status, rollout.stop_reason) == ("failed", "scoring_error")
    assert msgspec.json.decode(msgspec.json.encode(rollout), type=Rollout) == rollout


def test_an_observation_of_a_class_of_its_own_is_a_text() -> None:
    class Trapped(Hostile):
        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            return Trap("mind"), {}

    agent = ScriptedAgent(lambda messages: "done")
    rollout = anyio.run(partial(EpisodeRunner("trapped", Trapped, agent).run, Task("go"), id="0", seed=0))
    assert [m.content for m in rollout.messages] == ["mind", "done"]
    assert msgspec.json.encode(rollout)


@pytest.mark.parametrize("answer", [10**30, object(), "\ud800"])
def test_a_task_that_no_log_can_hold_is_refused_by_name(answer: object) -> None:
    class Unwritable(Hostile):
        def tasks(self, split: str) -> Iterator[Task]:
            yield Task("go", answer=answer)

    with pytest.raises(EnvCodeError, match="task train-0 cannot be written"):
        Taskset(Unwritable, "train", 0).task(0)


def test_cancelling_an_episode_still_cancels_its_tool() -> None:
    class Slow(Hostile):
        max_seconds = 0.05

        @tool
        async def waits(self) -> str:
            """Wait for ever."""
            await anyio.sleep_forever()
            return ""

    async def main() -> Rollout:
        call = Message("assistant", tool_calls=(ToolCall("1", "waits"),))
        with anyio.fail_after(5):
            return await EpisodeRunner("slow", Slow, ScriptedAgent(lambda m: call)).run(Task("go"), id="0", seed=0)

    rollout = anyio.run(main)
    assert (rollout.status, rollout.stop_reason) == ("truncated", "time_limit")
    assert msgspec.json.encode(rollout)


def test_a_huge_answer_is_shown_by_its_ends() -> None:
    class Huge(Hostile):
        max_answer_chars = 20

        @tool
        def text(self) -> str:
            """Give more than anybody reads."""
            return "a" * 500_000 + "b" * 500_000

        @tool
        async def items(self) -> list[int]:
            """Give many items."""
            return [1] * 1000

        @tool
        def error(self) -> str:
            """Say all of it at once."""
            raise ValueError("c" * 1000)

    async def main() -> Rollout:
        calls = tuple(ToolCall(name, name) for name in ("text", "items", "error"))
        agent = ScriptedAgent(lambda m: Message("assistant", tool_calls=calls) if len(m) == 1 else "done")
        return await EpisodeRunner("huge", Huge, agent).run(Task("go"), id="0", seed=0)

    rollout = anyio.run(main)
    assert [m.content for m in rollout.messages if m.role == "tool"] == [
        "aaaaaaaaaa\n[999980 characters left out]\nbbbbbbbbbb",
        "[1,1,1,1,1\n[1981 characters left out]\n1,1,1,1,1]",
        "error: Val\n[999 characters left out]\ncccccccccc",
    ]
