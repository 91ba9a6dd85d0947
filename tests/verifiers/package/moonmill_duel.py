"""Two agents who name a number each, and a judge, in the second API of verifiers."""

from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["Duel", "Duels"]


class Number(vf.TaskData):
    pass


class DuelTask(vf.Task[Number]):
    pass


class DuelConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    second: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    judge: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class Duel(vf.Env[DuelConfig]):
    """The higher number wins; who gives up has lost, and the other has no turn."""

    async def setup(self, agents: vf.Agents) -> None:
        agents.judge.trainable = False

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        first, second = (DuelTask(Number(idx=task.data.idx, prompt=None)) for _ in range(2))
        async with agents.first.interaction(first) as one, agents.second.interaction(second) as other:
            said = [await one.turn("first: a number")]
            if said[0].last_reply == "I give up":
                one.trace.record_reward("won", 0.0)
                other.trace.record_reward("won", 1.0)
                return
            said.append(await other.turn("second: a number"))
        await agents.judge.run(DuelTask(Number(prompt=f"judge: {said[0].last_reply} or {said[1].last_reply}")))
        ahead = float(int(said[0].last_reply) > int(said[1].last_reply))
        one.trace.record_reward("won", ahead)
        other.trace.record_reward("won", 1.0 - ahead)


class Duels(vf.Taskset[DuelTask, vf.TasksetConfig]):
    def load(self) -> Iterable[DuelTask]:
        for i in range(10):
            yield DuelTask(Number(prompt=None, name=f"duel-{i}"))
