"""One episode, from a task to a rollout.

`EpisodeRunner.run` always returns a rollout: what breaks on the way gives it the status `failed`, never an exception
and never a reward. Only cancellation passes through, and the `EOFError` of a player who leaves.
"""

import copy
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import msgspec

from moonmill.agents.agent import Agent, Session
from moonmill.agents.recordable import recordable
from moonmill.blame import place_of, text_of
from moonmill.envs import EnvHost, MultiTurnEnv
from moonmill.errors import ContextFullError, EngineError, MoonmillError, PromptTooLongError, RewardError
from moonmill.sandboxes import SandboxError
from moonmill.types import Message, Rollout, Segment, Status, StopReason, Task, Timings, ToolFault

EnvFactory = Callable[[], MultiTurnEnv]
P = ParamSpec("P")
T = TypeVar("T")


class EpisodeRunner:
    """Plays episodes of one environment with one agent; many may run at once.

    Args:
        env_id: what the environment is called in rollouts and errors.
        factory: makes an environment, for one episode.
        agent: plays.
    """

    def __init__(self, env_id: str, factory: EnvFactory, agent: Agent) -> None:
        self.env_id = env_id
        self.factory = factory
        self.agent = agent

    async def run(self, task: Task, *, id: str, seed: int, index: int = 0, group: str | None = None) -> Rollout:
        """Play `task` to its end and score it.

        Args:
            task: the problem.
            id: the rollout's id.
            seed: decides everything random in the episode, sampling included.
            index: the admission number.
            group: the group the rollout belongs to, in the group modes.
        """
        started_at, start = time.time(), time.monotonic()
        # Author's code may change what it is given: that is for its own episode, and not for the log.
        own = copy.deepcopy(task)
        episode = _Episode()
        rollout: Rollout | None = None
        scoring = 0.0
        host = EnvHost(self.factory, self.env_id)
        try:
            async with host:
                await episode.play(host, self.agent, own, seed)
                rollout = episode.rollout(self.env_id, own, id, seed, index, group)
                scored_from, waited = time.monotonic(), host.sandbox_seconds
                if rollout.status is not Status.FAILED:
                    rollout = await host.score(rollout)
                scoring = time.monotonic() - scored_from - (host.sandbox_seconds - waited)
        except MoonmillError as e:
            episode.fail(e)
            failed = episode.rollout(self.env_id, task, id, seed, index, group)
            # What has its reward keeps it: only `close` can have raised.
            rollout = msgspec.structs.replace(rollout, error=text_of(e)) if rollout and scoring else failed
        timings = Timings(
            started_at=started_at,
            total=time.monotonic() - start,
            generation=episode.generation,
            environment=episode.environment,
            scoring=scoring,
            sandbox=host.sandbox_seconds,
        )
        return msgspec.structs.replace(rollout, task=task, timings=timings)


class _Episode:
    """What has happened so far in one episode."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.segments: list[Segment] = []
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

    async def play(self, host: EnvHost, agent: Agent, task: Task, seed: int) -> None:
        """Take turns until the environment, a limit or a failure ends the episode."""
        with host.time_limit(host.limits.max_seconds) as scope:
            try:
                self.observation = await self._timed_env(host, host.reset, task, seed)
                with self._asking():
                    session = agent.session(host.tool_specs, seed)
                while not await self._turn(host, session):
                    pass
            except ContextFullError:
                self._truncate(StopReason.MAX_TOKENS)
            except MoonmillError as e:
                self.fail(e)
        if scope.cancelled_caught:
            self._truncate(StopReason.TIME_LIMIT)
        self.faults = host.faults

    async def _turn(self, host: EnvHost, session: Session) -> bool:
        """One answer of the agent and the environment's reaction; True when the episode is over."""
        observation = self.observation
        self.messages += observation
        with self._asking():
            turn = await session.act(observation)
            message = recordable(turn.message)
        self.segments += turn.segments
        self.messages.append(message)
        self.turn_rewards.append(0.0)
        result = await self._timed_env(host, host.step, message, turn.finish_reason)
        self.turn_rewards[-1] = result.reward
        self.observation = result.messages
        if turn.finish_reason == "length":
            self._truncate(StopReason.LENGTH)
        elif result.terminated:
            self.stop_reason = StopReason.STOPPED if message.tool_calls else StopReason.ANSWERED
        elif len(self.turn_rewards) >= host.limits.max_turns:
            self._truncate(StopReason.MAX_TURNS)
        elif result.truncated:
            self._truncate(StopReason.STOPPED)
        elif host.limits.max_tokens is not None and self._tokens() >= host.limits.max_tokens:
            self._truncate(StopReason.MAX_TOKENS)
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
            raise EngineError(f"the agent raised {type(e).__name__}: {text_of(e)} ({place_of(e)})") from e
        finally:
            self.generation += time.monotonic() - start
        self.asking = False

    async def _timed_env(self, host: EnvHost, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        start, waited = time.monotonic(), host.sandbox_seconds
        try:
            return await call(*args, **kwargs)
        finally:
            self.environment += time.monotonic() - start - (host.sandbox_seconds - waited)

    def _tokens(self) -> int:
        return sum(len(s.tokens) for s in self.segments)

    def _truncate(self, reason: StopReason) -> None:
        self.status, self.stop_reason = Status.TRUNCATED, reason

    def fail(self, error: Exception) -> None:
        """Mark the episode as failed, for the reason that the error's type and the moment tell."""
        self.status = Status.FAILED
        self.error = text_of(error)
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
            turn_rewards=tuple(self.turn_rewards),
            tool_faults=self.faults,
            error=self.error,
        )
