"""What the tests of the built-in environments share: tasks by their number, and episodes played by scripts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio

from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import Script, ScriptedAgent
from moonmill.envs import MultiTurnEnv, Taskset
from moonmill.registry import make
from moonmill.types import Message, Rollout, Task, ToolCall

Factory = Callable[[], MultiTurnEnv]


def tasks(env: str, split: str, count: int, seed: int = 0, **arguments: Any) -> list[Task]:
    taskset = Taskset(partial(make, env, **arguments), split, seed)
    return [taskset.task(i) for i in range(count)]


def play(env: str | Factory, task: Task, script: Script, seed: int = 0, **arguments: Any) -> Rollout:
    factory = partial(make, env, **arguments) if isinstance(env, str) else env
    runner = EpisodeRunner("test-v0", factory, ScriptedAgent(script))
    return anyio.run(lambda: runner.run(task, id="r", seed=seed))


def play_at_once(env: str, played: Sequence[Task], script: Script, **arguments: Any) -> list[Rollout]:
    """All of them interleaved, each with its number as the seed."""
    runner = EpisodeRunner("test-v0", partial(make, env, **arguments), ScriptedAgent(script))
    rollouts: dict[int, Rollout] = {}

    async def one(seed: int) -> None:
        rollouts[seed] = await runner.run(played[seed], id="r", seed=seed)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for seed in range(len(played)):
                group.start_soon(one, seed)

    anyio.run(main)
    return [rollouts[seed] for seed in range(len(played))]


def saying(*turns: Message | ToolCall | str) -> Script:
    """Take these turns, and then say nothing."""

    def script(messages: Sequence[Message]) -> Message | str:
        taken = sum(message.role == "assistant" for message in messages)
        turn = turns[taken] if taken < len(turns) else ""
        return Message("assistant", tool_calls=(turn,)) if isinstance(turn, ToolCall) else turn

    return script


def told(rollout: Rollout, role: str = "tool") -> list[str]:
    return [message.content for message in rollout.messages if message.role == role]


def experience(rollout: Rollout) -> tuple[list[str], float | None]:
    """What can be compared of two rollouts of one task and seed."""
    return [message.content for message in rollout.messages], rollout.reward
