"""What always holds around an author's `setup`, `reset`, `step` and `close`, whether they call `super()` or not.

Seen from outside the four are synchronous, take and return Gymnasium's values, and keep the episode in order: the
conversation is complete, turns are counted, limits and `@stop` methods apply, an episode that has ended cannot be
stepped, a second `reset` begins as a new instance would, `setup` and `close` happen once. A sandbox is there before
`setup` and gone after `close`.

Seen from inside, through `super()`, they are what the author wrote. An override may be async; `super().step(...)` and
`super().reset(...)` are then awaited, and what they run stays on the episode's thread.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from moonmill.envs.calls import answer, settled
from moonmill.envs.limits import check_sandbox
from moonmill.envs.returned import UNBOUNDED, as_number, as_observation, unpacked
from moonmill.envs.sandbox_handles import BlockingSandbox
from moonmill.envs.sandbox_tools import SandboxTool
from moonmill.envs.tasks import numbered
from moonmill.errors import EnvCodeError, EpisodeOverError, ToolDefinitionError
from moonmill.types import Message, Task

if TYPE_CHECKING:
    from moonmill.envs.base import MultiTurnEnv

Observation = tuple[Message, ...]
"""The new messages for the model."""
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
"""Gymnasium's five values: observation, reward, terminated, truncated, info."""
Inner = Callable[..., Any]
"""The author's method, bound; what it awaits has been awaited when it returns."""

_IS_ASYNC = "__moonmill_is_async__"


def surround(owner: type["MultiTurnEnv"]) -> None:
    """Put the order of an episode around the methods that `owner` defines itself.

    Raises:
        ToolDefinitionError: a method is sync and overrides an async one of the author's, or the other way round.
    """
    for name, around in _AROUND.items():
        method = getattr(owner, name)
        if name in vars(owner) or not hasattr(method, _IS_ASYNC):  # The latter comes from a mixin.
            _refuse_mixture(owner, name, inspect.iscoroutinefunction(method))
            setattr(owner, name, _outermost(name, method, around))


def is_async(owner: type["MultiTurnEnv"], name: str) -> bool:
    """Whether the author's `name` is async."""
    return bool(getattr(getattr(owner, name), _IS_ASYNC))


async def close_on_the_loop(env: "MultiTurnEnv") -> None:
    """Close an environment whose thread is busy but whose `close` is async, and so needs no thread."""
    if not env._moonmill.is_closed:
        env._moonmill.is_closed = env._moonmill.is_over = True
        authors: Callable[[MultiTurnEnv], Awaitable[None]] = inspect.unwrap(type(env).close)
        await authors(env)


def inside(env: "MultiTurnEnv", name: str, body: Callable[..., Any], *args: Any) -> Any:
    """What `super()` gives an override: the values of `body`, or, in an async one, something to await."""
    return env._moonmill.home.run(body, *args) if is_async(type(env), name) else body(*args)


def begin(env: "MultiTurnEnv") -> tuple[Observation, dict[str, Any]]:
    """What `reset` does of itself: show the prompt."""
    furnish(env)
    return prompt_of(env), {}


def prompt_of(env: "MultiTurnEnv") -> Observation:
    """What the model is shown first."""
    prompt = env.task.messages()
    if env.system_prompt is not None and not (prompt and prompt[0].role == "system"):
        prompt = (Message("system", env.system_prompt), *prompt)
    return prompt


def furnish(env: "MultiTurnEnv") -> None:
    """Put the sandbox that `env.sandbox` specifies in its place, unless that was done before. It is not open yet: an
    episode that wants another one, and says so in `setup` or `reset`, is not to wait for two."""
    wanted: object = env.sandbox
    if wanted is not None and not isinstance(wanted, BlockingSandbox):
        spec = check_sandbox(type(env), wanted)
        assert spec is not None
        vars(env)["sandbox"] = env._moonmill.sandboxes.own(spec)


def react(env: "MultiTurnEnv", action: Message | str) -> Step:
    """What `step` does of itself: run the tool calls; without one, or cut off by length, the turn is the last."""
    if env.finish_reason == "length":
        return (), 0.0, False, True, {}
    calls = as_action(action).tool_calls
    answers = answer(env, calls)
    episode = env._moonmill
    episode.is_answered = not calls
    return answers, episode.take_reward(), not calls or episode.is_finished, False, {}


def as_action(action: Message | str) -> Message:
    """A text is an assistant's message."""
    return Message("assistant", action) if isinstance(action, str) else action


def _outermost(name: str, method: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(env: "MultiTurnEnv", *args: Any, **kwargs: Any) -> Any:
        if getattr(type(env), name) is not call:
            return method(env, *args, **kwargs)  # Called through `super()`.

        def inner(*args: Any, **kwargs: Any) -> Any:
            return settled(env, method(env, *args, **kwargs))

        return around(env, inner, *args, **kwargs)

    setattr(call, _IS_ASYNC, inspect.iscoroutinefunction(method))
    return call


def _refuse_mixture(owner: type["MultiTurnEnv"], name: str, mine: bool) -> None:
    overridden = next((cls for cls in owner.__mro__[1:] if name in vars(cls)), None)
    if overridden is None or _is_ours(overridden):
        return
    theirs = is_async(overridden, name) if hasattr(vars(overridden)[name], _IS_ASYNC) else mine
    if mine != theirs:
        kinds = ("async", "sync") if mine else ("sync", "async")
        raise ToolDefinitionError(
            f"{owner.__name__}.{name} is {kinds[0]}, but {overridden.__name__}.{name}, which it overrides, is "
            f"{kinds[1]}: write both as `{'async def' if theirs else 'def'}`"
        )


def _is_ours(cls: type) -> bool:
    return cls.__module__ == "moonmill.envs.base"


def _setup(env: "MultiTurnEnv", inner: Inner) -> None:
    if not env._moonmill.is_set_up:
        furnish(env)
        inner()
        furnish(env)
        env._moonmill.is_set_up = True


def _close(env: "MultiTurnEnv", inner: Inner) -> None:
    if not env._moonmill.is_closed:
        env._moonmill.is_closed = env._moonmill.is_over = True
        try:
            inner()
        finally:
            env._moonmill.sandboxes.close()


def _reset(
    env: "MultiTurnEnv", inner: Inner, *, seed: int | None = None, options: Mapping[str, Any] | None = None
) -> tuple[Observation, dict[str, Any]]:
    if env._moonmill.has_begun or env._moonmill.is_closed:
        _make_anew(env)
    env.setup()
    episode, options = env._moonmill, dict(options or {})
    where = f"{type(env).__name__}.reset"
    task = options.get("task")
    env.task = next_task(env, str(options.get("split", "train"))) if task is None else task
    if not isinstance(env.task, Task):
        raise EnvCodeError(f"{where} got the task {task!r:.200}, but options['task'] should be a Task")
    env.rng = Random(seed or 0)
    episode.has_begun = True
    observation, info = unpacked(where, inner(seed=seed, options={**options, "task": env.task}), 2)
    observation = as_observation(where, observation)
    furnish(env)
    episode.sandboxes.open_own()
    if env.sandbox is None and isinstance(env, SandboxTool):
        raise EnvCodeError(f"{type(env).__name__} has tools that need a sandbox: say `sandbox = SandboxSpec()` in it")
    env.messages = list(observation)
    episode.is_over = False
    return observation, info


def _step(env: "MultiTurnEnv", inner: Inner, action: Message | str) -> Step:
    episode = env._moonmill
    where = f"{type(env).__name__}.step"
    if episode.is_over:
        raise EpisodeOverError(f"{where} was called, but the episode is over or has not begun: call reset first")
    message = as_action(action)
    env.messages.append(message)
    episode.turns += 1
    episode.in_turn, episode.turn_reward, episode.is_answered = True, 0.0, False
    try:
        observation, reward, terminated, truncated, info = unpacked(where, inner(message), 5)
        observation = as_observation(where, observation)
        env.messages += observation
        terminated = bool(terminated) or episode.is_finished or (not truncated and _asked_to_stop(env))
        reward = as_number(where, reward, UNBOUNDED) + episode.take_reward()
    finally:
        episode.in_turn = False
    truncated = not terminated and (bool(truncated) or episode.turns >= env.max_turns)
    episode.is_over = terminated or truncated
    return observation, reward, terminated, truncated, info


_AROUND: dict[str, Callable[..., Any]] = {"setup": _setup, "reset": _reset, "step": _step, "close": _close}


def _make_anew(env: "MultiTurnEnv") -> None:
    """What a new instance would be, so that nothing leaks from one episode into the next."""
    env.close()
    episode, seed = env._moonmill.anew(), env.taskset_seed
    args, kwargs = episode.arguments
    vars(env).clear()
    vars(env).update(_moonmill=episode, taskset_seed=seed, messages=[], finish_reason="stop")
    construct: Callable[..., None] = type(env).__init__
    construct(env, *args, **kwargs)


def next_task(env: "MultiTurnEnv", split: str) -> Task:
    """What a `reset` plays that names no task."""
    tasks = env._moonmill.own_tasks
    if split not in tasks:
        tasks[split] = numbered(env, split)
    return next(tasks[split])


def _asked_to_stop(env: "MultiTurnEnv") -> bool:
    marks = env._moonmill_class.marks
    return any(settled(env, getattr(env, mark.method)()) for mark in marks if mark.kind == "stop")
