"""`MultiTurnEnv`: what an author subclasses.

One instance is one episode, so plain attributes are per-episode state. All of it is ordinary synchronous Python;
methods written with `async def` are welcome and run on the event loop. `reset` and `step` have Gymnasium's signatures.
"""

import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

import anyio
import msgspec

from moonmill.envs.faults import FaultLog
from moonmill.envs.marks import Mark, collect_marks
from moonmill.envs.tools import Tool, ToolArgumentsError, ToolSpec, collect_tools
from moonmill.errors import EpisodeOverError, MoonmillError
from moonmill.seeding import derive_seed
from moonmill.types import FinishReason, Message, Task, ToolCall

Observation = tuple[Message, ...]
"""The new messages for the model."""
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
"""Gymnasium's five values: observation, reward, terminated, truncated, info."""


class MultiTurnEnv(ABC):
    """A multi-turn environment for a language-model agent.

    Write `tasks`, a method or two with `@tool`, and a `@reward`; override `step` for what tools cannot say.

    Example:
        >>> class Shout(MultiTurnEnv):
        ...     def tasks(self, split):
        ...         yield Task("Say hello, loudly", answer="HELLO")
        ...
        ...     @reward
        ...     def loud(self, rollout):
        ...         return float(rollout.final_text() == self.task.answer)
    """

    max_turns: int = 8
    """Assistant turns after which the episode is truncated."""
    max_tokens: int | None = None
    """Tokens of the whole context after which the episode is truncated."""
    max_seconds: float = 600.0
    """Seconds after which the episode is truncated."""
    max_scoring_seconds: float = 60.0
    """Seconds that rewards and metrics may take together; a rollout that takes longer is unscored."""
    reward_bounds: tuple[float, float] = (-100.0, 100.0)
    """What a reward must lie within; one outside makes the rollout fail."""
    system_prompt: str | None = None
    """Put in front of every task's prompt."""

    task: Task
    """The problem of this episode."""
    rng: Random
    """This episode's own random numbers, from its seed. Use no others."""
    messages: list[Message]
    """The conversation so far."""
    finish_reason: FinishReason
    """How the turn given to `step` ended; `length` means the model was cut off."""
    taskset_seed: int
    """What `task_rng` hangs from; set by the `Taskset`."""

    _tools: ClassVar[Mapping[str, Tool]] = {}
    _marks: ClassVar[tuple[Mark, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._tools = collect_tools(cls)
        cls._marks = collect_marks(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> "MultiTurnEnv":
        # Here and not in __init__, so that an author's constructor need not call ours.
        env = super().__new__(cls)
        env.taskset_seed = 0
        env.messages = []
        env.finish_reason = "stop"
        env._faults = FaultLog()
        env._await = run_awaitable
        env._over = True
        env._fresh = None
        env._own_tasks = {}
        return env

    _faults: FaultLog
    _await: Callable[[Callable[[], Awaitable[Any]]], Any]
    _over: bool
    _fresh: dict[str, Any] | None
    _own_tasks: dict[str, Iterator[Task]]
    _turns: int
    _turn_reward: float
    _finished: bool

    @abstractmethod
    def tasks(self, split: str) -> Iterator[Task]:
        """The problems of a split, one after another; endless or not. Draw from `self.task_rng(split)`."""

    def task_rng(self, split: str) -> Random:
        """Random numbers for making the tasks of `split`: the same for the same seed, other ones for another split."""
        return Random(derive_seed(self.taskset_seed, type(self).__qualname__, split))

    def setup(self) -> Any:
        """Called once before `reset`; may be async. What is opened here is closed in `close`."""

    def close(self) -> Any:
        """Called once at the end, also after a failure; may be async."""

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told about the tools."""
        return tuple(tool.spec for tool in self._tools.values())

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Begin an episode; returns the prompt and an empty info.

        Attributes set since the first reset are forgotten, so nothing leaks from one episode into the next.

        Args:
            seed: decides `self.rng`; 0 if None.
            options: `task` is the problem; without it, the next of `split` (`train` unless given).
        """
        options = options or {}
        task = options.get("task") or self._next_task(str(options.get("split", "train")))
        if self._fresh is None:
            self._fresh = dict(vars(self))
        else:
            fresh = self._fresh
            vars(self).clear()
            vars(self).update(fresh, _fresh=fresh)
        self.task = task
        self.rng = Random(seed or 0)
        self._faults = FaultLog()
        self._turns = 0
        self._finished = self._over = False
        prompt = task.messages()
        if self.system_prompt is not None:
            prompt = (Message("system", self.system_prompt), *prompt)
        self.messages = list(prompt)
        return prompt, {}

    def step(self, action: Message | str) -> Any:
        """Take the model's message: run its tool calls, or end the episode if it makes none.

        A turn that was cut off (`self.finish_reason == "length"`) is no answer: the episode is truncated. An override
        may be async and may return a text as its observation; it calls `super().step` for what it does not change.

        Raises:
            EpisodeOverError: the episode has ended, or has not begun.
        """
        if self._over:
            raise EpisodeOverError(f"{type(self).__name__}: there is no episode to step: call reset first")
        message = Message("assistant", action) if isinstance(action, str) else action
        self.messages.append(message)
        self._turns += 1
        self._turn_reward = 0.0
        answers: Observation = ()
        truncated = self.finish_reason == "length"
        if message.tool_calls and not truncated:
            answers = self._answer(message.tool_calls)
            self.messages += answers
        terminated = not truncated and (not message.tool_calls or self._finished or self._asked_to_stop())
        truncated = truncated or (not terminated and self._turns >= self.max_turns)
        self._over = terminated or truncated
        return answers, self._turn_reward, terminated, truncated, {}

    def finish(self, reward: float = 0.0) -> None:
        """End the episode after this turn, with a reward for the turn. For tools to call."""
        self._finished = True
        self.add_reward(reward)

    def add_reward(self, reward: float) -> None:
        """Reward this turn. Belongs to the model's last message."""
        self._turn_reward += reward

    def _next_task(self, split: str) -> Task:
        if split not in self._own_tasks:
            self._own_tasks[split] = itertools.chain.from_iterable(iter(lambda: self.tasks(split), None))
        return next(self._own_tasks[split])

    def _asked_to_stop(self) -> bool:
        for mark in self._marks:
            if mark.kind == "stop":
                method = getattr(self, mark.method)
                if self._await(method) if inspect.iscoroutinefunction(method) else method():
                    return True
        return False

    def _answer(self, calls: Sequence[ToolCall]) -> Observation:
        """Run the calls, one answer each, in their order. Neighbours that are async run at the same time."""
        answers: list[Message] = []
        for is_async, run in itertools.groupby(calls, self._is_async):
            if is_async:
                answers += self._await(lambda run=list(run): _gather([self._call_async(call) for call in run]))
            else:
                answers += [self._call(call) for call in run]
        return tuple(answers)

    def _is_async(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.is_async

    def _call(self, call: ToolCall) -> Message:
        with self._faults.watch(call) as answer:
            method, arguments = self._bind(call)
            answer.content = _as_text(method(**arguments))
        return answer.message()

    async def _call_async(self, call: ToolCall) -> Message:
        with self._faults.watch(call) as answer:
            method, arguments = self._bind(call)
            answer.content = _as_text(await method(**arguments))
        return answer.message()

    def _bind(self, call: ToolCall) -> tuple[Callable[..., Any], dict[str, Any]]:
        if call.error is not None:
            raise ToolArgumentsError(f"error: the call could not be read: {call.error}")
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools) or "none"
            raise UnknownToolError(f"error: there is no tool {call.name!r}; the tools are: {names}")
        return getattr(self, tool.method), tool.parse(call.arguments)


class UnknownToolError(ToolArgumentsError):
    """The model called a tool that is not there."""


def run_awaitable(call: Callable[[], Awaitable[Any]]) -> Any:
    """Await something from synchronous code: how an environment that is used by hand runs its async methods."""

    async def main() -> Any:
        return await call()

    return anyio.run(main)


async def _gather(coroutines: Sequence[Awaitable[Message]]) -> list[Message]:
    results: list[Message | None] = [None] * len(coroutines)

    async def one(index: int, coroutine: Awaitable[Message]) -> None:
        results[index] = await coroutine

    try:
        async with anyio.create_task_group() as group:
            for index, coroutine in enumerate(coroutines):
                group.start_soon(one, index, coroutine)
    except* MoonmillError as errors:
        raise next(iter(errors.exceptions)) from errors
    return [message for message in results if message is not None]


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    return "" if result is None else msgspec.json.encode(result, enc_hook=str).decode()
