"""The door between an environment and everything asynchronous: one `EnvHost` is one episode.

Synchronous methods run on the episode's own thread, asynchronous ones on the event loop. What the author's code raises
outside a tool comes out as `EnvCodeError`; the environment is closed whatever happens.
"""

import inspect
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.faults import place_of
from moonmill.envs.scoring import score
from moonmill.envs.threads import OwnerThread
from moonmill.envs.tools import ToolSpec
from moonmill.errors import EnvCodeError, MoonmillError
from moonmill.types import FinishReason, Message, Rollout, Task, ToolFault

_CLOSE_SECONDS = 30.0


class StepResult(Struct, frozen=True):
    """What a step gave."""

    messages: tuple[Message, ...]
    reward: float
    terminated: bool
    truncated: bool


class EnvHost:
    """An environment as the episode runner sees it. Use it as an async context.

    Args:
        factory: makes the environment; runs on the episode's thread.
        env_id: what the environment is called in rollouts and errors.
    """

    def __init__(self, factory: Callable[[], MultiTurnEnv], env_id: str) -> None:
        self.env_id = env_id
        self._factory = factory
        self._thread = OwnerThread.acquire()
        self._env: MultiTurnEnv

    async def __aenter__(self) -> "EnvHost":
        try:
            self._env = await self._guarded("its constructor", self._factory)
        except BaseException:
            self._thread.release()
            raise
        token = anyio.lowlevel.current_token()
        self._env._await = partial(anyio.from_thread.run, token=token)
        try:
            await self._guarded("setup", self._env.setup)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return self._env.tool_specs

    @property
    def max_turns(self) -> int:
        return self._env.max_turns

    @property
    def max_tokens(self) -> int | None:
        return self._env.max_tokens

    @property
    def max_seconds(self) -> float:
        return self._env.max_seconds

    @property
    def faults(self) -> tuple[ToolFault, ...]:
        return self._env._faults.faults

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Begin the episode; returns the prompt."""
        values = await self._guarded("reset", partial(self._env.reset, seed=seed, options={"task": task}))
        observation, _ = self._unpack("reset", values, 2)
        return self._as_messages("reset", observation)

    async def step(self, message: Message, finish_reason: FinishReason = "stop") -> StepResult:
        """Give the model's message to the environment."""
        self._env.finish_reason = finish_reason
        values = await self._guarded("step", self._env.step, message)
        observation, reward, terminated, truncated, _ = self._unpack("step", values, 5)
        return StepResult(self._as_messages("step", observation), float(reward), bool(terminated), bool(truncated))

    async def score(self, rollout: Rollout) -> Rollout:
        """`rollout` with its rewards, metrics and reward; unscored where that takes too long."""
        if self._thread.abandoned:
            return unscored(rollout, "the environment is still busy with a call that had to be left behind")
        with anyio.move_on_after(self._env.max_scoring_seconds):
            return await score(self._env, self.env_id, rollout, self._guarded)
        return unscored(rollout, f"scoring took longer than max_scoring_seconds ({self._env.max_scoring_seconds:g})")

    async def _guarded(self, where: str, method: Callable[..., Any], *args: Any) -> Any:
        """Call the author's code on the right thread; an exception of his gets its place and ours as its type."""
        try:
            if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "func", None)):
                return await method(*args)
            result = await self._thread.run(method, *args)
            return await result if inspect.isawaitable(result) else result
        except MoonmillError:
            raise
        except (Exception, SystemExit) as e:
            raise EnvCodeError(f"{self.env_id}: {where} raised {type(e).__name__}: {e} ({place_of(e)})") from e

    async def _close(self) -> None:
        # A thread that is still busy cannot close what belongs to it.
        try:
            if not self._thread.abandoned:
                with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await self._guarded("close", self._env.close)
        finally:
            self._thread.release()

    def _unpack(self, where: str, values: Any, count: int) -> Any:
        if isinstance(values, tuple) and len(values) == count:
            return values
        wanted = "(observation, info)" if count == 2 else "(observation, reward, terminated, truncated, info)"
        raise EnvCodeError(f"{self.env_id}: {where} returned {values!r:.200}, but should return {wanted}")

    def _as_messages(self, where: str, observation: Any) -> tuple[Message, ...]:
        if isinstance(observation, str):
            return (Message("user", observation),) if observation else ()
        if isinstance(observation, Message):
            return (observation,)
        if isinstance(observation, list | tuple) and all(isinstance(m, Message) for m in observation):
            return tuple(observation)
        raise EnvCodeError(
            f"{self.env_id}: {where} returned the observation {observation!r:.200}, but an observation is a text, a "
            "Message or a sequence of Messages"
        )


def unscored(rollout: Rollout, why: str) -> Rollout:
    """A rollout without a reward, with the reason."""
    return replace(rollout, reward=None, error=why)
