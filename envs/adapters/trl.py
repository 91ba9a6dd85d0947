"""Moonmill's environments in TRL's `GRPOTrainer`: its tools are called, and its rewards are what is trained on.

TRL takes an `environment_factory` whose instances have a `reset` and methods that are tools, and reward functions that
see the finished conversations. `ForTrl` makes both of any environment, and a dataset of its tasks. What always holds: a
tool is described to the model as Moonmill describes it; an episode that fails is unscored (None), and never 0.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal, Self

from moonmill.blame import error_of
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.foreign import ForeignEnv
from moonmill.envs.scoring import score
from moonmill.envs.taskset import Taskset
from moonmill.envs.tools import ToolSpec
from moonmill.errors import ConfigError, MissingExtraError, MoonmillError
from moonmill.registry import make
from moonmill.types import Message, Rollout, Status, StopReason, Task, ToolCall

if TYPE_CHECKING:
    from datasets import Dataset

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "null": type(None),
}
_OVER = "the episode is over: no tool can be called any more"
_TAKEN = ("reset", "get_reward")
"""Names that TRL gives a meaning."""


class ForTrl:
    """An environment as `GRPOTrainer` takes it. Use it as a context, which closes what was made.

    Args:
        env_id: as `moonmill.make` takes it.
        split: of its tasks.
        seed: what the tasks' random numbers hang from.
        args: of the environment's constructor.

    Raises:
        ConfigError: there is no such environment, or it has a tool that TRL cannot call.

    Example:
        >>> with ForTrl("calculator-v0", levels=[1]) as calculator:
        ...     trainer = GRPOTrainer(
        ...         model=model,
        ...         args=args,
        ...         train_dataset=calculator.dataset(256),
        ...         environment_factory=calculator.environment,
        ...         reward_funcs=calculator.reward,
        ...     )
        ...     trainer.train()
    """

    def __init__(self, env_id: str, *, split: str = "train", seed: int = 0, **args: Any) -> None:
        self.env_id = env_id
        self._make: Callable[[], MultiTurnEnv] = partial(make, env_id, **args)
        self._tasks = Taskset(self._make, split, seed)
        self._made: list[_Played] = []
        sample = self._make()
        if isinstance(sample, ForeignEnv):
            raise ConfigError(f"{env_id} is played by a program of its own, and TRL plays itself: take moonmill train")
        tools = {spec.name: _method(spec) for spec in sample.tool_specs}
        for name in tools:
            if name in _TAKEN or name.startswith("_") or not name.isidentifier():
                raise ConfigError(f"{env_id} has a tool {name!r}, a name that TRL has no tool under: give it another")
        self._kind = type("MoonmillEnvironment", (_Played,), tools)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments that were made."""
        while self._made:
            self._made.pop()._env.close()

    def dataset(self, size: int) -> "Dataset":
        """The first `size` tasks, as the columns `prompt` and `task`."""
        try:
            from datasets import Dataset
        except ImportError as e:
            raise MissingExtraError("environments for TRL", "trl") from e

        env, rows = self._make(), []
        try:
            for index in range(size):
                observation, _ = _begin(env, self._tasks.task(index))
                prompt = [{"role": message.role, "content": message.content} for message in observation]
                rows.append({"prompt": prompt, "task": index})
        finally:
            env.close()
        return Dataset.from_list(rows)

    def environment(self) -> "_Played":
        """What `environment_factory` is to be: makes an environment, in which one episode after another is played."""
        made: _Played = self._kind(self._make(), self.env_id, self._tasks)
        self._made.append(made)
        return made

    def reward(
        self, completions: Sequence[Sequence[Mapping[str, Any]]], environments: Sequence["_Played"], **columns: Any
    ) -> list[float | None]:
        """What `reward_funcs` is to be, or be among: the reward of each episode; None where it is unscored."""
        rollouts = [env._finished(said) for env, said in zip(environments, completions, strict=True)]
        if log := columns.get("log_metric"):
            for name in sorted({name for rollout in rollouts for name in rollout.metrics}):
                found = [rollout.metrics[name] for rollout in rollouts if name in rollout.metrics]
                log(name, sum(found) / len(found))
        return [None if rollout.status is Status.FAILED else rollout.reward for rollout in rollouts]


class _Played:
    """An environment that TRL plays: a subclass has its tools as methods."""

    def __init__(self, env: MultiTurnEnv, env_id: str, tasks: Taskset) -> None:
        self._env = env
        self._env_id = env_id
        self._tasks = tasks
        self._task: Task
        self._messages: list[Message]
        self._rewards: list[float]
        self._ended: Status | None
        self._error: str | None

    def reset(self, task: int, **row: Any) -> None:
        """Begin the episode of a row of the dataset, which has the prompt."""
        self._task = self._tasks.task(task)
        observation, _ = _begin(self._env, self._task)
        self._messages, self._rewards, self._ended, self._error = [*observation], [], None, None

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool, which is a turn; returns what the model is told."""
        if self._ended is not None:
            return _OVER
        call = ToolCall(f"call-{len(self._rewards)}", name, arguments)
        return "\n".join(m.content for m in self._step(Message("assistant", tool_calls=(call,))))

    def _step(self, message: Message) -> tuple[Message, ...]:
        try:
            observation, reward, terminated, truncated, _ = self._env.step(message)
        except MoonmillError as e:  # what is no answer: the infrastructure's fault, or the environment's
            self._ended, self._error = Status.FAILED, error_of(e)
            raise
        self._messages += [message, *observation]
        self._rewards.append(reward)
        if terminated or truncated:
            self._ended = Status.FINISHED if terminated else Status.TRUNCATED
        messages: tuple[Message, ...] = observation
        return messages

    def _finished(self, said: Sequence[Mapping[str, Any]]) -> Rollout:
        """The episode, scored; `said` ends with the model's last message."""
        last = said[-1] if said else {}
        if self._ended is None and last.get("role") == "assistant" and not last.get("tool_calls"):
            with suppress(MoonmillError):  # It is kept.
                self._step(Message("assistant", last.get("content") or ""))
        status = self._ended or Status.TRUNCATED
        rollout = Rollout(
            id=self._task.id,
            env=self._env_id,
            task=self._task,
            status=status,
            stop_reason=StopReason.STOPPED if status is Status.FINISHED else StopReason.MAX_TURNS,
            messages=tuple(self._messages),
            turn_rewards=tuple(self._rewards),
            error=self._error,
        )
        return rollout if status is Status.FAILED else score(self._env, self._env_id, rollout)


def _begin(env: MultiTurnEnv, task: Task) -> tuple[tuple[Message, ...], dict[str, Any]]:
    result: tuple[tuple[Message, ...], dict[str, Any]] = env.reset(seed=task.seed, options={"task": task})
    return result


def _method(spec: ToolSpec) -> Callable[..., str]:
    """A tool as a method whose signature and docstring transformers makes the same description of again."""
    properties: dict[str, Any] = spec.parameters.get("properties", {})
    required = spec.parameters.get("required", ())
    hints = {name: _hint(schema) for name, schema in properties.items()}

    def call(self: _Played, **arguments: Any) -> str:
        return self._call(spec.name, arguments)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name, schema in properties.items():
        default = inspect.Parameter.empty if name in required else schema.get("default")
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        )
    lines = [f"    {name}: {_one_line(schema.get('description') or name)}" for name, schema in properties.items()]
    call.__name__ = call.__qualname__ = spec.name
    call.__doc__ = "\n".join([_one_line(spec.description) or spec.name, "", *(["Args:", *lines] if lines else [])])
    call.__annotations__ = {**hints, "return": str}
    call.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return call


def _hint(schema: Mapping[str, Any]) -> Any:
    """The Python type of a JSON schema, as far as transformers makes a schema of it."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "anyOf" in schema:
        return reduce(or_, (_hint(one) for one in schema["anyOf"]))
    if schema.get("type") == "array":
        return list[_hint(schema.get("items", {}))]  # type: ignore[misc]
    return _TYPES.get(schema.get("type", ""), Any)


def _one_line(text: str) -> str:
    return " ".join(text.split())
