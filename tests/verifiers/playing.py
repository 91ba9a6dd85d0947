"""Environments of verifiers played by a script."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import msgspec

from moonmill import Message, Rollout, Task, Taskset, ToolCall, make
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs.adapters.verifiers.added import Added, module_name
from moonmill.installing import cache_folder


def calculating(messages: Sequence[Message]) -> Message | str:
    """Calls the calculator with the prompt, and answers with what it says."""
    last = messages[-1]
    if last.role == "tool":
        return f"It is {last.content}"
    return Message(
        "assistant", tool_calls=(ToolCall(f"call-{len(messages)}", "calculate", {"expression": last.content}),)
    )


Script = Callable[[Sequence[Message]], Message | str]


def play(env: str, tasks: Sequence[Task], script: Script = calculating) -> list[Rollout]:
    """The tasks, all at once."""

    async def all_of_them() -> list[Rollout]:
        runner = EpisodeRunner(env, partial(make, env), ScriptedAgent(script))
        return await asyncio.gather(*(runner.run(task, id=str(i), seed=i) for i, task in enumerate(tasks)))

    return anyio.run(all_of_them)


def tasks_of(env: str, split: str, count: int) -> list[Task]:
    source = Taskset(partial(make, env), split, seed=0)
    return [source.task(i) for i in range(count)]


def known_as(added: Added) -> None:
    """Write down an environment as one that was added, into the cache that the process has."""
    records = cache_folder("verifiers")
    records.mkdir(parents=True, exist_ok=True)
    (records / f"{module_name(added.id)}.json").write_bytes(msgspec.json.encode(added))
