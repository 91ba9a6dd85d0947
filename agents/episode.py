"""What has happened so far in one episode, and how it is played turn by turn."""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from moonmill.agents.agent import Agent, Session
from moonmill.agents.recordable import recordable
from moonmill.blame import error_of, said_of
from moonmill.envs import EnvHost
from moonmill.errors import ContextFullError, EngineError, MoonmillError, PromptTooLongError, RewardError
from moonmill.sandboxes import SandboxError
from moonmill.types import Message, Rollout, Segment, Status, StopReason, Task, ToolFault, Usage

P = ParamSpec("P")
T = TypeVar("T")


class Episode:
    """What has happened so far in one episode."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.segments: list[Segment] = []
        self.usage: Usage | None = None
        self.branches: tuple[tuple[Segment, ...], ...] = ()
        self.abridged = False
        """There is more to it than `messages` tell."""
        self.turn_rewards: list[float] = []
        self.status = Status.FINISHED
        self.stop_reason = StopReason.ANSWERED
        self.error: str | None = None
        self.asking = False
        """The agent is being asked: what breaks is its fault."""
        self.generation = 0.0
        self.environment = 0.0
        self.observation: Sequence[Message] = ()
        self.faults: tuple[ToolFault, ...] = ()

    async def score(self, host: EnvHost, rollout: Rollout) -> Rollout:
        """The rollout with what the environment says of it."""
        return await host.score(rollout)

    async def play(self, host: EnvHost, agent: Agent, task: Task, seed: int) -> None:
        """Take turns until the environment, a limit or a failure ends the episode."""
        with host.time_limit(host.limits.max_seconds) as scope:
            try:
                self.observation = await self.timed_env(host, host.reset, task, seed)
                with self._asking():
                    session = agent.session(host.tool_specs, seed)
                while not await self._turn(host, session):
                    pass
            except ContextFullError:
                self.truncate(StopReason.MAX_TOKENS)
            except MoonmillError as e:
                self.fail(e)
        if scope.cancelled_caught:
            self.truncate(StopReason.TIME_LIMIT)
        self.faults = host.faults

    async def _turn(self, host: EnvHost, session: Session) -> bool:
        """One answer of the agent and the environment's reaction; True when the episode is over."""
        observation = self.observation
        self.messages += observation
        with self._asking():
            turn = await session.act(observation)
            message = recordable(turn.message)
        self.segments += turn.segments
        if turn.usage is not None:
            self.usage = turn.usage + (self.usage or Usage(0, 0))
        self.messages.append(message)
        self.turn_rewards.append(0.0)
        result = await self.timed_env(host, host.step, message, turn.finish_reason)
        self.turn_rewards[-1] = result.reward
        self.observation = result.messages
        if turn.finish_reason == "length":
            self.truncate(StopReason.LENGTH)
        elif result.terminated:
            self.stop_reason = result.ending
        elif len(self.turn_rewards) >= host.limits.max_turns:
            self.truncate(StopReason.MAX_TURNS)
        elif result.truncated:
            self.truncate(StopReason.STOPPED)
        elif host.limits.max_tokens is not None and self._tokens() >= host.limits.max_tokens:
            self.truncate(StopReason.MAX_TOKENS)
        else:
            return False
        self.messages += result.messages
        return True

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Time the agent, and blame it for what it raises."""
        start = time.monotonic()
        self.asking = True
        try:
            yield
        except (MoonmillError, EOFError):
            raise
        except Exception as e:
            raise EngineError(f"the agent raised {said_of(e)}") from e
        finally:
            self.generation += time.monotonic() - start
        self.asking = False

    async def timed_env(self, host: EnvHost, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have the environment do something, and count its time."""
        start, waited = time.monotonic(), host.sandbox_seconds
        try:
            return await call(*args, **kwargs)
        finally:
            self.environment += time.monotonic() - start - (host.sandbox_seconds - waited)

    def _tokens(self) -> int:
        return sum(len(s.tokens) for s in self.segments)

    def truncate(self, reason: StopReason) -> None:
        """A limit has ended it."""
        self.status, self.stop_reason = Status.TRUNCATED, reason

    def fail(self, error: Exception) -> None:
        """Mark the episode as failed, for the reason that the error's type and the moment tell."""
        self.status = Status.FAILED
        self.error = error_of(error)
        if isinstance(error, PromptTooLongError):
            self.stop_reason = StopReason.PROMPT_TOO_LONG
        elif isinstance(error, SandboxError):
            self.stop_reason = StopReason.SANDBOX_ERROR
        elif isinstance(error, RewardError):
            self.stop_reason = StopReason.SCORING_ERROR
        elif self.asking or isinstance(error, EngineError):
            self.stop_reason = StopReason.ENGINE_ERROR
        else:
            self.stop_reason = StopReason.ENV_ERROR

    def rollout(self, env_id: str, task: Task, id: str, seed: int, index: int, group: str | None) -> Rollout:
        """The rollout so far, not yet scored."""
        return Rollout(
            id=id,
            env=env_id,
            task=task,
            status=self.status,
            stop_reason=self.stop_reason,
            index=index,
            seed=seed,
            group=group,
            messages=tuple(self.messages),
            segments=tuple(self.segments),
            branches=self.branches,
            turn_rewards=tuple(self.turn_rewards),
            tool_faults=self.faults,
            error=self.error,
            usage=self.usage,
            abridged=self.abridged,
        )
