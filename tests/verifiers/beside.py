"""Run where verifiers and Moonmill are both installed: plays what is named, and prints what came of it."""

import json
import sys
from functools import partial

import anyio

from moonmill import Message, Taskset, ToolCall, make
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent


def calculating(messages):
    last = messages[-1]
    if last.role == "tool":
        return last.content
    return Message(
        "assistant", tool_calls=(ToolCall(f"call-{len(messages)}", "calculate", {"expression": last.content}),)
    )


async def main(env: str) -> None:
    factory = partial(make, env)
    task = Taskset(factory, "train", seed=0).task(0)
    rollout = await EpisodeRunner(env, factory, ScriptedAgent(calculating)).run(task, id="0", seed=0)
    worker = type(factory()._worker).__name__
    print(json.dumps([worker, rollout.status, rollout.reward, rollout.metrics, rollout.error]))


for env in sys.argv[1:]:
    anyio.run(main, env)
