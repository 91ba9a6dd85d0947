"""The environment that is checked, and playing it: every episode goes through `EnvHost`, as in training."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from moonmill.blame import text_of
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.checker.player import RandomPlayer
from moonmill.envs.differences import Difference, Event, first_difference
from moonmill.envs.host import EnvHost
from moonmill.envs.taskset import Taskset
from moonmill.envs.threads import on_a_thread
from moonmill.errors import ConfigError, MoonmillError
from moonmill.seeding import derive_seed
from moonmill.types import Message, Rollout, Status, StopReason, Task, ToolFault

SPLITS = ("train", "eval")
EPISODE_SECONDS = 120.0
"""An episode of a check may take no longer: its player answers at once."""
_MOST_TASKS = 100
_TASK_SECONDS = 5.0
"""So many tasks of a split are looked at, or as many as come in this time."""

Factory = Callable[[], MultiTurnEnv]


class Trace:
    """All that one episode showed, in its order.

    Attributes:
        events: where, and what was seen there as JSON; equal events are equal episodes.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        self.seed = seed
        self.events: list[Event] = []
        self.turns: list[tuple[Message, Sequence[Message]]] = []
        """What the player said, and what the environment answered."""
        self.turn_rewards: list[float] = []
        self.over = self.terminated = False
        self.right: Mapping[str, Any] = {}
        self.faults: Sequence[ToolFault] = ()
        self.prompt: Sequence[Message] = ()
        self.rollout: Rollout | None = None
        self.error: MoonmillError | None = None
        self.reset_seconds: list[float] = []
        self.step_seconds: list[float] = []

    def note(self, where: str, what: Any) -> None:
        """Keep what was seen."""
        self.events.append((where, msgspec.json.encode(what, order="deterministic").decode()))

    def difference(self, other: "Trace") -> Difference | None:
        """The first, None where there is none."""
        return first_difference(self.events, other.events)


class Subject:
    """One environment under check.

    Args:
        env_id: what it is called.
        factory: makes an instance.
        seed: decides tasks, episodes and the player.
        again: what another process makes it from, `(id, arguments)`; None where only this one can.
    """

    def __init__(self, env_id: str, factory: Factory, seed: int, again: tuple[str, Mapping[str, Any]] | None) -> None:
        self.env_id = env_id
        self.factory = factory
        self.seed = seed
        self.again = again
        self.env: MultiTurnEnv
        """An instance that is never begun, for what the class says."""
        self.tasks: dict[str, list[Task]] = {}
        """The first tasks of each split it has."""
        self.task_seconds: list[tuple[float, int]] = []
        """What tasks took to be made, and how many they were."""
        self.traces: list[Trace] = []
        """Every episode that was played."""

    async def fetch(self, split: str, most: int = _MOST_TASKS) -> list[Task]:
        """The first tasks of a split, from a new instance; empty where there is no such split."""
        start, found = time.monotonic(), []
        with suppress(ConfigError):
            found = await on_a_thread(self._fetch, split, most)
        self.task_seconds.append((time.monotonic() - start, len(found)))
        return found

    def _fetch(self, split: str, most: int) -> list[Task]:
        taskset, start = Taskset(self.factory, split, self.seed), time.monotonic()
        found: list[Task] = []
        while len(found) < most and time.monotonic() - start < _TASK_SECONDS:
            found.append(taskset.task(len(found)))
        return found

    def task(self, index: int) -> Task:
        """Task number `index`, of those that training would take where there are such."""
        tasks = next(filter(None, (self.tasks.get(split) for split in SPLITS)))
        return tasks[index % len(tasks)]

    async def play(self, index: int, *, task: Task | None = None, factory: Factory | None = None) -> Trace:
        """Episode number `index`: equal numbers have equal tasks, seeds and players."""
        async with self.episode(index, task=task, factory=factory) as episode:
            await episode.finish()
        return episode.trace

    @asynccontextmanager
    async def episode(
        self, index: int, *, task: Task | None = None, factory: Factory | None = None
    ) -> AsyncIterator["Episode"]:
        """An episode that is played by hand. Errors of the environment are kept in its trace."""
        trace = Trace(task or self.task(index), derive_seed(self.seed, "episode", index))
        self.traces.append(trace)
        episode = Episode(EnvHost(factory or self.factory, self.env_id), trace)
        try:
            async with episode.host:
                yield episode
        except MoonmillError as e:
            episode.fail("opening or closing it", e)


class Episode:
    """One episode on its host, with its player."""

    def __init__(self, host: EnvHost, trace: Trace) -> None:
        self.host = host
        self.trace = trace
        self._player: RandomPlayer
        self._new: Sequence[Message] = ()

    async def reset(self) -> None:
        """Begin it, or begin it anew."""
        trace = self.trace
        trace.events, trace.turns, trace.turn_rewards, trace.over = [], [], [], False
        start = time.monotonic()
        prompt = await self._bounded("reset", self.host.reset, trace.task, trace.seed)
        if prompt is None:
            return
        trace.reset_seconds.append(time.monotonic() - start)
        self._new = trace.prompt = prompt
        self._player = RandomPlayer(self.host.tool_specs, trace.seed)
        trace.right = self._player.right
        trace.note("the prompt", prompt)

    async def turn(self) -> None:
        """One turn, if it is not over."""
        trace = self.trace
        if trace.over:
            return
        where = f"turn {len(trace.turns) + 1}"
        said = self._player.say(self._new)
        start = time.monotonic()
        result = await self._bounded(where, self.host.step, said)
        if result is None:
            return
        trace.step_seconds.append(time.monotonic() - start)
        self._new = result.messages
        trace.turns.append((said, result.messages))
        trace.turn_rewards.append(result.reward)
        trace.note(where, result)
        trace.terminated = result.terminated
        trace.over = result.terminated or result.truncated or len(trace.turns) >= self.host.limits.max_turns

    async def score(self) -> None:
        """What it was worth."""
        trace = self.trace
        if trace.error is not None:
            return
        said = [message for turn in trace.turns for message in (turn[0], *turn[1])]
        rollout = Rollout(
            "check",
            self.host.env_id,
            trace.task,
            Status.FINISHED if trace.terminated else Status.TRUNCATED,
            StopReason.ANSWERED if trace.terminated else StopReason.MAX_TURNS,
            messages=(*trace.prompt, *said),
            turn_rewards=tuple(trace.turn_rewards),
        )
        scored = await self._bounded("the rewards", self.host.score, rollout)
        if scored is not None:
            trace.rollout, trace.faults = scored, self.host.faults
            trace.note("the rewards", (scored.reward, scored.rewards, scored.metrics, scored.error))

    async def finish(self) -> None:
        """All of it, or what is left."""
        if not self.trace.events:
            await self.reset()
        while not self.trace.over:
            await self.turn()
        await self.score()

    def fail(self, where: str, error: MoonmillError) -> None:
        """The environment's code raised: the episode is over."""
        self.trace.over = True
        self.trace.error = self.trace.error or error
        self.trace.note(where, f"raised {type(error).__name__}: {text_of(error)}")

    async def _bounded(self, where: str, call: Callable[..., Any], *args: Any) -> Any:
        """What `call` gives, None where it fails or takes too long."""
        with self.host.time_limit(EPISODE_SECONDS) as scope:
            try:
                return await call(*args)
            except MoonmillError as e:
                self.fail(where, e)
        if scope.cancelled_caught:
            self.fail(where, MoonmillError(f"it took longer than {EPISODE_SECONDS:g} s"))
        return None


def as_recorded(task: Task) -> Task:
    """The task as a log gives it back."""
    return msgspec.json.decode(msgspec.json.encode(task), type=Task)
