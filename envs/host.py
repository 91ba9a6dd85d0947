"""The door between an environment and everything asynchronous: one `EnvHost` is one episode.

Synchronous methods run on the episode's own thread, asynchronous ones on the authors' event loop. What the author's
code raises outside a tool comes out as `EnvCodeError`; the environment is closed whatever happens, and every wait has a
bound.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from moonmill.blame import blaming
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.clock import Clock
from moonmill.envs.episode_sandboxes import EpisodeSandboxes
from moonmill.envs.foreign import Endpoint, ForeignEnv, Outcome, play, score_outcome
from moonmill.envs.lifecycle import close_on_the_loop, is_async
from moonmill.envs.limits import Limits, limits_of
from moonmill.envs.loop import soon_here
from moonmill.envs.returned import as_turn_reward
from moonmill.envs.scoring import score
from moonmill.envs.threads import OwnerThread
from moonmill.envs.tools import ToolSpec
from moonmill.envs.wrapper import innermost
from moonmill.errors import EnvCodeError, MoonmillError
from moonmill.types import FinishReason, Message, Rollout, StopReason, Task, ToolFault

T = TypeVar("T")
_CLOSE_SECONDS = 30.0


class StepResult(Struct, frozen=True):
    """What a step gave."""

    messages: tuple[Message, ...]
    reward: float
    terminated: bool
    truncated: bool
    ending: StopReason
    """Why it is over, where it is terminated."""


class EnvHost:
    """An environment as the episode runner sees it. Use it as an async context.

    Args:
        factory: makes the environment; runs on the episode's thread.
        env_id: what the environment is called in rollouts and errors.
    """

    def __init__(self, factory: Callable[[], MultiTurnEnv], env_id: str) -> None:
        self.env_id = env_id
        self._factory = factory
        self._thread: OwnerThread
        self._env: MultiTurnEnv
        self._limits: Limits
        self._sandboxes = EpisodeSandboxes()
        self._soon: Callable[..., object]

    async def __aenter__(self) -> Self:
        self._thread, self._soon = OwnerThread.acquire(), soon_here()
        try:
            self._env = await self._bounded(MultiTurnEnv.max_seconds, "its constructor", self._construct)
        except BaseException:
            self._thread.release()
            raise
        try:
            await self._bounded(self._limits.max_seconds, "setup", self._setup)
        except BaseException:
            with suppress(MoonmillError):  # What went wrong first is what matters.
                await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(MoonmillError) if error is not None else nullcontext():
            await self._close()

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return self._env.tool_specs

    @property
    def is_foreign(self) -> bool:
        """A program plays it: with `play` in the place of `step`."""
        return isinstance(self._env, ForeignEnv)

    @property
    def limits(self) -> Limits:
        """As they are since the reset."""
        return self._limits

    @property
    def sandbox_seconds(self) -> float:
        """Waited for sandboxes."""
        return self._sandboxes.seconds

    @property
    def faults(self) -> tuple[ToolFault, ...]:
        return self._env._moonmill.faults.faults

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Begin the episode; returns the prompt."""
        return await self._guarded("reset", partial(self._reset, task, seed))

    async def step(self, message: Message, finish_reason: FinishReason = "stop") -> StepResult:
        """Give the model's message to the environment."""
        self._env.finish_reason = finish_reason
        messages, reward, terminated, truncated, _ = await self._guarded("step", partial(self._env.step, message))
        with blaming(self.env_id, "step"):
            reward = as_turn_reward(self.env_id, reward, self._limits.reward_bounds)
        return StepResult(messages, reward, terminated, truncated, self._env._moonmill.ending)

    async def play(self, model: Endpoint, seed: int) -> Outcome:
        """Have a program play the episode that has begun."""
        assert isinstance(self._env, ForeignEnv)
        return await self._guarded("play", partial(play, self._env, self.env_id, model, seed))

    async def score(self, rollout: Rollout, outcome: Outcome | None = None) -> Rollout:
        """`rollout` with its rewards, metrics and reward; unscored where that takes too long.

        Args:
            rollout: as it was played.
            outcome: what a program says of it.
        """
        if self._thread.abandoned:
            return unscored(rollout, "the environment is still busy with a call that had to be left behind")
        limit = self._limits.max_scoring_seconds
        with self.time_limit(limit) as scope:
            rollout = await self._guarded("scoring", partial(self._score, rollout, outcome))
        if scope.cancelled_caught:
            return unscored(rollout, f"scoring took longer than max_scoring_seconds ({limit:g})")
        return rollout

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """Cancels what takes longer. The time the episode waits for a sandbox is not counted."""
        with anyio.move_on_after(seconds) as scope:
            clock, clocks = Clock(scope, self._soon), self._sandboxes.clocks
            clocks.append(clock)
            try:
                yield scope
            finally:
                clocks.remove(clock)

    def _score(self, rollout: Rollout, outcome: Outcome | None) -> Rollout:
        if isinstance(self._env, ForeignEnv):
            return score_outcome(self._env, self.env_id, rollout, outcome or Outcome())
        return score(self._env, self.env_id, rollout)

    def _construct(self) -> MultiTurnEnv:
        env: object = self._factory()
        if not isinstance(env, MultiTurnEnv):
            raise EnvCodeError(f"{self.env_id} is no MultiTurnEnv, but makes {env!r:.200}")
        self._limits = limits_of(env)
        self._sandboxes = env._moonmill.sandboxes
        env._moonmill.home = self._thread
        return env

    def _setup(self) -> None:
        self._env.setup()
        self._limits = limits_of(self._env)

    def _reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        observation, _ = self._env.reset(seed=seed, options={"task": task})
        self._limits = limits_of(self._env)  # A task may have its own.
        messages: tuple[Message, ...] = observation
        return messages

    async def _guarded(self, where: str, method: Callable[[], T]) -> T:
        return await self._thread.run(self._blaming, where, method)

    def _blaming(self, where: str, method: Callable[[], T]) -> T:
        # On the thread itself, because a StopIteration cannot leave it.
        with blaming(self.env_id, where):
            result = method()
            self._sandboxes.raise_if_lost()
            return result

    async def _bounded(self, seconds: float, where: str, method: Callable[[], T]) -> T:
        with self.time_limit(seconds) as scope:
            result = await self._guarded(where, method)
        if not scope.cancelled_caught:
            return result
        raise EnvCodeError(f"{self.env_id}: {where} took longer than {seconds:g} s")

    async def _close(self) -> None:
        env, thread = self._env, self._thread
        try:
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                if not thread.abandoned:
                    await self._guarded("close", env.close)
                elif is_async(type(innermost(env)), "close"):
                    with blaming(self.env_id, "close"):
                        await thread.await_apart(partial(close_on_the_loop, innermost(env)))
        finally:
            thread.release(last=env.close)  # What needs a thread that is still busy is closed when that comes back.
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._sandboxes.close_there()


def unscored(rollout: Rollout, why: str) -> Rollout:
    """A rollout without a reward, with the reason."""
    return replace(rollout, reward=None, error=why)
