"""An episode is decided by its task and its seed, whatever happens beside it."""

import random
from collections.abc import Iterator

import anyio
import anyio.lowlevel

from moonmill import Message, MultiTurnEnv, Rollout, Task, reward, tool
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from tests.envs.parts import call, says


class Dice(MultiTurnEnv):
    """Random at every place where an environment may be."""

    def tasks(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            yield Task(f"beat {rng.randint(1, 6)}")

    @tool
    def roll(self) -> int:
        return self.rng.randint(1, 10**9)

    @tool
    async def roll_later(self) -> int:
        await anyio.lowlevel.checkpoint()
        return self.rng.randint(1, 10**9)

    @reward
    def luck(self, rollout: Rollout) -> float:
        return self.rng.random()


def script(messages: object) -> Message:
    assert isinstance(messages, tuple)
    if len(messages) > 8:
        return Message("assistant", "done")
    return says(call("roll", "a"), call("roll_later", "b"))


async def episode(seed: int) -> tuple[list[str], float | None]:
    runner = EpisodeRunner("dice-v0", Dice, ScriptedAgent(script))
    rollout = await runner.run(Task("go"), id="r", seed=seed)
    return [m.content for m in rollout.messages], rollout.reward


async def interleaved(seeds: range) -> list[tuple[list[str], float | None]]:
    found: dict[int, tuple[list[str], float | None]] = {}

    async def one(seed: int) -> None:
        found[seed] = await episode(seed)

    async with anyio.create_task_group() as group:
        for seed in seeds:
            group.start_soon(one, seed)
    return [found[seed] for seed in seeds]


def test_interleaved_episodes_are_what_they_are_alone() -> None:
    alone = [anyio.run(episode, seed) for seed in range(12)]
    assert anyio.run(interleaved, range(12)) == alone
    assert len({str(one) for one in alone}) == 12


def test_the_global_random_state_is_neither_used_nor_changed() -> None:
    random.seed(1)
    before = random.getstate()
    first = anyio.run(episode, 3)
    assert random.getstate() == before
    random.seed(2)
    assert anyio.run(episode, 3) == first


def test_two_environments_of_one_seed_have_streams_of_their_own() -> None:
    class Other(Dice): ...

    assert Dice().task_rng("train").random() != Other().task_rng("train").random()
    assert Dice().task_rng("train").random() != Dice().task_rng("eval").random()
    assert Dice().task_rng("train").random() == Dice().task_rng("train").random()
