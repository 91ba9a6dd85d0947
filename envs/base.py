"""`MultiTurnEnv`: what an author subclasses.

One instance is one episode, so plain attributes are per-episode state. All of it is ordinary synchronous Python;
methods written with `async def` are welcome and run on an event loop that is the authors'. `reset` and `step` have
Gymnasium's signatures; what holds around an author's own is in `lifecycle`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, ClassVar, Self

from moonmill.envs.episode import Definition, Episode
from moonmill.envs.episode_sandboxes import FurtherSandbox
from moonmill.envs.lifecycle import begin, inside, react, surround
from moonmill.envs.limits import check_class, check_sandbox
from moonmill.envs.marks import collect_marks
from moonmill.envs.tools import ToolSpec, collect_tools
from moonmill.errors import EnvCodeError, EpisodeOverError, ToolDefinitionError, defining
from moonmill.sandboxes.types import SandboxSpec
from moonmill.seeding import derive_seed
from moonmill.types import FinishReason, Message, Task


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
        >>> env = Shout()
        >>> observation, info = env.reset()
        >>> observation, reward, terminated, truncated, info = env.step("HELLO")
    """

    max_turns: int = 8
    """Assistant turns after which the episode is truncated."""
    max_tokens: int | None = None
    """Tokens of the whole context after which the episode is truncated."""
    max_seconds: float = 600.0
    """Seconds after which the episode is truncated."""
    max_scoring_seconds: float = 60.0
    """Seconds that rewards and metrics may take together; a rollout that takes longer is unscored."""
    max_task_seconds: float = 300.0
    """Seconds that `tasks` may take for a task, the first included; one that takes longer ends the run."""
    max_answer_chars: int | None = 100_000
    """Characters of a tool's answer that the model is shown: of a longer one, its beginning and its end."""
    reward_bounds: tuple[float, float] = (-100.0, 100.0)
    """What each reward, of the episode or a turn, must lie within; one outside makes the rollout fail."""
    system_prompt: str | None = None
    """Put in front of every task's prompt that has no system message of its own."""
    sandbox: SandboxSpec | None = None
    """What the episode's own sandbox is like; in methods, `self.sandbox` is the sandbox itself. None for none."""

    task: Task
    """The problem of this episode."""
    rng: Random
    """This episode's own random numbers, from its seed. Use no others."""
    messages: list[Message]
    """The conversation so far; during `step` up to the model's message."""
    finish_reason: FinishReason
    """How the turn given to `step` ended; `length` means the model was cut off."""
    taskset_seed: int
    """What `task_rng` hangs from; set by the `Taskset`."""

    # All of ours that is not for authors stands behind these two names, so that the others are theirs.
    _moonmill: Episode
    _moonmill_class: ClassVar[Definition] = Definition()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        tools, marks = collect_tools(cls), collect_marks(cls)
        for method in (*(t.method for t in tools.values()), *(m.method for m in marks)):
            if method in vars(MultiTurnEnv) or method in MultiTurnEnv.__annotations__:
                with defining(getattr(cls, method)):
                    raise ToolDefinitionError(
                        f"{cls.__name__}.{method}: MultiTurnEnv has a {method!r} of its own; call the method something "
                        f'else (a tool can keep its name for the model: `@tool(name="{method}")`)'
                    )
        check_class(cls)
        cls._moonmill_class = Definition(tools, marks)
        surround(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Here and not in __init__, so that an author's constructor need not call ours.
        env = super().__new__(cls)
        env._moonmill = Episode(args, kwargs)
        env.taskset_seed = 0
        env.messages = []
        env.finish_reason = "stop"
        return env

    @abstractmethod
    def tasks(self, split: str) -> Iterable[Task]:
        """The problems of a split, one after another; endless or not. Draw from `self.task_rng(split)`."""

    def task_rng(self, split: str) -> Random:
        """Random numbers for making the tasks of `split`: the same for the same seed, other ones for another split."""
        return Random(derive_seed(self.taskset_seed, type(self).__qualname__, split))

    def setup(self) -> Any:
        """Open what the episode needs; may be async. Called once, before `reset` or by it."""

    def close(self) -> Any:
        """Close what `setup` opened; may be async. Called once at the end, also after a failure."""

    def open_sandbox(self, spec: SandboxSpec | None = None, *, may_be_lost: bool = False) -> FurtherSandbox:
        """A fresh sandbox besides the episode's own, for as long as a `with` (or `async with`) lasts.

        For graders: what the model has left in its sandbox, processes included, cannot reach into it.

        Args:
            spec: what it is like; None takes that of the episode's own.
            may_be_lost: losing it does not fail the episode by itself: whoever catches the `SandboxUnavailableError`
                decides what to make of it. For where what runs in it may have ended it.

        Raises:
            EnvCodeError: there is neither.
        """
        sandboxes = self._moonmill.sandboxes
        declared = sandboxes.spec or check_sandbox(type(self), self.sandbox)
        wanted = declared if spec is None else check_sandbox(type(self), spec)
        if wanted is None:
            raise EnvCodeError(
                f"{type(self).__name__}.open_sandbox() has nothing to go by: give it a SandboxSpec, or set `sandbox` "
                "in the class"
            )
        return FurtherSandbox(sandboxes, wanted, may_be_lost)

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told about the tools."""
        return tuple(tool.spec for tool in self._moonmill_class.tools.values())

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Begin an episode; returns the prompt and an empty info.

        A second `reset` begins as a new instance would: what the last episode left in attributes is gone. An override
        finds `self.task` and `self.rng` in place. It may be async, and may return a text as its observation.

        Args:
            seed: decides `self.rng`; 0 if None.
            options: `task` is the problem; without it, the next of `split` (`train` unless given).
        """
        return inside(self, "reset", begin, self)

    def step(self, action: Message | str) -> Any:
        """Take the model's message: run its tool calls, or end the episode if it makes none.

        A turn that was cut off (`self.finish_reason == "length"`) is no answer: the episode is truncated. An override
        may be async, and may return a text as its observation; it calls `super().step`, or awaits it if it is async,
        for what it does not change.

        Raises:
            EpisodeOverError: the episode has ended, or has not begun.
        """
        return inside(self, "step", react, self, action)

    def finish(self, reward: float = 0.0) -> None:
        """End the episode after this turn, with a reward for the turn. For tools, and overrides of `step`, to call."""
        self.add_reward(reward)
        self._moonmill.is_finished = True

    def add_reward(self, reward: float) -> None:
        """Reward this turn. Belongs to the model's last message.

        Raises:
            EpisodeOverError: no turn is being stepped.
        """
        if not self._moonmill.in_turn:
            raise EpisodeOverError(f"{type(self).__name__}: only within a step can a turn be rewarded or be the last")
        self._moonmill.turn_reward += reward


surround(MultiTurnEnv)  # type: ignore[type-abstract]
