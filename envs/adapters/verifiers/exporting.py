"""An environment of ours as a taskset for verifiers, where both are installed.

Its tools are served as a toolset, and its rewards come from playing the finished conversation once more: an environment
depends on its task, its seed and what the model said, and on nothing else.
"""

import inspect
import json
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any, ClassVar

import msgspec

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.host import EnvHost
from moonmill.envs.taskset import Taskset
from moonmill.errors import ConfigError, MissingExtraError
from moonmill.registry import make
from moonmill.types import Message, Rollout, Status, StopReason, Task, ToolCall

try:
    import verifiers.v1 as vf
except ImportError as e:
    raise MissingExtraError("an environment for verifiers", "verifiers") from e


class Counts(vf.State):
    """What a toolset tells of an episode."""

    over: bool = False
    """The environment has ended it."""


class EnvTask(vf.TaskData):
    """A task of ours."""

    env: str
    args: dict[str, Any]
    task: dict[str, Any]


class EnvTools(vf.Toolset[vf.ToolsetConfig, Counts]):
    """The tools of an environment, for one episode."""

    TOOL_PREFIX = None

    async def setup_task(self, task: EnvTask) -> None:
        self._ids = count()
        self._env = make(task.env, **task.args)
        self._host = await self._exit_stack.enter_async_context(_host(task))
        await self._host.reset(_task_of(task), _task_of(task).seed)

    def register(self, mcp: Any) -> None:
        for tool in self._env._moonmill_class.tools.values():
            call = self._calling(tool.spec.name, getattr(type(self._env), tool.method))
            mcp.add_tool(self._with_state(call), name=tool.spec.name, description=tool.spec.description)

    def _calling(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(**arguments: Any) -> str:
            if self.state.over:
                return "error: the episode is over"
            asked = ToolCall(f"call-{next(self._ids)}", name, arguments)
            result = await self._host.step(Message("assistant", tool_calls=(asked,)))
            self.state.over = result.terminated or result.truncated
            return "\n".join(message.content for message in result.messages)

        signature = inspect.signature(method, eval_str=True)
        shown = list(signature.parameters.values())[1:]
        call.__name__ = name
        call.__signature__ = signature.replace(parameters=shown, return_annotation=str)  # type: ignore[attr-defined]
        return call


class EnvTaskConfig(vf.TaskConfig):
    """Where the tools are served."""

    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class ScoredTask(vf.Task[EnvTask, Counts, EnvTaskConfig]):
    """A task of ours, with its environment's rewards."""

    @classmethod
    def toolsets(cls, config: EnvTaskConfig) -> list[Any]:
        return [EnvTools(config.tools)]

    @vf.stop
    async def over(self, trace: vf.Trace) -> bool:
        return bool(trace.state.over)

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        rollout = await _replayed(self.data, trace)
        trace.record_metrics({**rollout.metrics, **{f"{name}_reward": r for name, r in rollout.rewards.items()}})
        if rollout.reward is None:
            raise RuntimeError(rollout.error or "the environment gave no reward")
        return rollout.reward


class EnvTasksetConfig(vf.TasksetConfig):
    """Which tasks."""

    task: EnvTaskConfig = EnvTaskConfig()
    split: str = "train"
    seed: int = 0
    size: int = 1000
    """So many tasks; ours have no end."""


class EnvTaskset(vf.Taskset[ScoredTask, EnvTasksetConfig]):
    """The tasks of an environment."""

    env: ClassVar[str]
    args: ClassVar[dict[str, Any]]

    def load(self) -> Iterable[ScoredTask]:
        source = Taskset(partial(make, self.env, **self.args), self.config.split, self.config.seed)
        system = make(self.env, **self.args).system_prompt
        for index in range(self.config.size):
            task = source.task(index)
            messages = [_shown(message) for message in task.messages()]
            if system is not None and messages[:1] and messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": system})
            lone = len(messages) == 1 and messages[0]["role"] == "user"
            data = EnvTask(
                prompt=messages[0]["content"] if lone else messages,
                name=task.id,
                env=self.env,
                args=self.args,
                task=msgspec.to_builtins(task),
            )
            yield ScoredTask(data, self.config.task)


def to_verifiers(env: str, **args: Any) -> type[EnvTaskset]:
    """A taskset of verifiers with the tasks, tools and rewards of an environment.

    Args:
        env: its id; its module can be imported wherever verifiers runs it.
        args: of its constructor.

    Raises:
        ConfigError: it has a `step` of its own: what a model and tools do not decide between them, no harness plays.

    Example:
        In a package `calculator_for_verifiers`:

        >>> Calculator = to_verifiers("calculator-v0", levels=[2])
        >>> __all__ = ["Calculator"]
    """
    kind = type(make(env, **args))
    if inspect.unwrap(kind.step) is not inspect.unwrap(MultiTurnEnv.step):
        raise ConfigError(f"{env}: has a `step` of its own, and verifiers plays those that are made of tools alone")
    return type(kind.__name__, (EnvTaskset,), {"env": env, "args": args, "__doc__": kind.__doc__})


async def _replayed(data: EnvTask, trace: Any) -> Rollout:
    """The finished conversation, played once more with the environment that scores it."""
    task = _task_of(data)
    messages = [*task.messages()]
    turn_rewards: list[float] = []
    async with _host(data) as host:
        await host.reset(task, task.seed)
        for said in trace.assistant_messages:
            message = _message(said)
            result = await host.step(message)
            messages += [message, *result.messages]
            turn_rewards.append(result.reward)
            if result.terminated or result.truncated:
                break
        rollout = Rollout(
            trace.id,
            data.env,
            task,
            Status.FINISHED,
            StopReason.ANSWERED,
            messages=tuple(messages),
            turn_rewards=tuple(turn_rewards),
        )
        return await host.score(rollout)


def _host(data: EnvTask) -> EnvHost:
    return EnvHost(partial(make, data.env, **data.args), data.env)


def _task_of(data: EnvTask) -> Task:
    return msgspec.convert(data.task, Task)


def _shown(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": c.id,
                "name": c.name,
                "arguments": c.arguments if isinstance(c.arguments, str) else json.dumps(c.arguments),
            }
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _text(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def _message(said: Any) -> Message:
    calls = tuple(ToolCall(c.id, c.name, _arguments(c.arguments)) for c in said.tool_calls or ())
    return Message("assistant", said.content or "", calls)


def _arguments(text: str) -> dict[str, Any] | str:
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError:
        return text
    return found if isinstance(found, dict) else text
