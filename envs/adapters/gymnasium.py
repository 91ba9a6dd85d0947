"""Moonmill's environments in Gymnasium, and Gymnasium's in Moonmill.

Importing this module registers every environment that has a name: `calculator-v0` is then
`gymnasium.make("moonmill/Calculator-v0")`. The other way round there is `from_gymnasium`, and ids such as
`gymnasium:FrozenLake-v1`.

An episode in Gymnasium is an episode here: same limits, same `@stop`, and the last step's reward has what the
`@reward` methods give for the whole episode. Where they give none, since the environment failed or the rollout is
unscored, the step raises: Gymnasium knows no reward that is not a number.
"""

import copy
import json
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from moonmill.errors import ConfigError, EnvCodeError, MissingExtraError

try:
    import gymnasium
except ModuleNotFoundError as e:
    raise MissingExtraError("environments for and of Gymnasium", "gymnasium") from e

from gymnasium.spaces import Text

from moonmill.envs.adapters.gymnasium_games import from_gymnasium
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.returned import as_turn_reward, encodable, shortened
from moonmill.envs.scoring import score
from moonmill.registry import list_envs, make
from moonmill.types import Message, Rollout, Status, StopReason, ToolCall

__all__ = ["GymnasiumEnv", "from_gymnasium", "gymnasium_id", "register_envs"]

_LONGEST = 100_000
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class AnyText(Text):
    """Texts of any characters; samples are of printable ASCII."""

    def __init__(self) -> None:
        super().__init__(_LONGEST, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class GymnasiumEnv(gymnasium.Env[str, str]):
    """An environment of ours as Gymnasium's: observations are the new messages' text, an action is the model's.

    A seed given to `reset` decides the tasks and everything random from there on; a later `reset` without one goes on
    to the next task. Options are those of `MultiTurnEnv.reset`. Time limits are not kept: what ends an episode here is
    the same in each run.

    Args:
        env_id: what `moonmill.make` takes.
        split: whose tasks are played.
        render_mode: `ansi` for the conversation as text.
        arguments: of the environment's constructor.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, env_id: str, *, split: str = "train", render_mode: str | None = None, **arguments: Any) -> None:
        self.env_id = env_id
        self.split = split
        self.render_mode = render_mode
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.env: MultiTurnEnv = make(env_id, **arguments)
        self._arguments = arguments
        self._has_tasks = False
        self._rewards: list[float] = []

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode. The info has `tools`, as chat APIs take them."""
        super().reset(seed=seed)
        if seed is not None or not self._has_tasks:
            self.env.close()
            self.env = make(self.env_id, **self._arguments)
            self.env.taskset_seed = self._draw_seed()
            self._has_tasks = True
        self._rewards = []
        messages, info = self.env.reset(seed=self._draw_seed(), options={"split": self.split, **(options or {})})
        tools = [copy.deepcopy(tool.to_openai()) for tool in self.env.tool_specs]
        return _as_text(messages), {**info, "tools": tools}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the model's message. After the last, the info has `rewards`, `metrics` and `stop_reason`.

        Raises:
            ConfigError: the action is no text.
            EnvCodeError: the episode failed, or is unscored.
        """
        message = as_message(action, turn=len(self._rewards))
        messages, reward, terminated, truncated, info = self.env.step(message)
        reward = as_turn_reward(self.env_id, reward, self.env.reward_bounds)
        self._rewards.append(reward)
        if terminated or truncated:
            scored = score(self.env, self.env_id, self._rollout(terminated))
            if scored.reward is None:
                raise EnvCodeError(f"the episode has no reward: {scored.error}")
            reward = scored.reward - sum(self._rewards[:-1])
            ended = {"rewards": scored.rewards, "metrics": scored.metrics, "stop_reason": scored.stop_reason.value}
            info = {**info, **ended}
        return _as_text(messages), reward, terminated, truncated, info

    def render(self) -> str:
        """The conversation so far."""
        return "\n".join(f"{m.role}: {m.content}{''.join(map(_as_call, m.tool_calls))}" for m in self.env.messages)

    def close(self) -> None:
        self.env.close()

    def _draw_seed(self) -> int:
        return int(self.np_random.integers(2**63 - 1))

    def _rollout(self, terminated: bool) -> Rollout:
        if terminated:
            reason = self.env._moonmill.ending
        else:
            reason = StopReason.MAX_TURNS if len(self._rewards) >= self.env.max_turns else StopReason.STOPPED
        return Rollout(
            id=self.env.task.id,
            env=self.env_id,
            task=self.env.task,
            status=Status.FINISHED if terminated else Status.TRUNCATED,
            stop_reason=reason,
            messages=tuple(self.env.messages),
            turn_rewards=tuple(self._rewards),
        )


def gymnasium_id(env_id: str) -> str:
    """What Gymnasium calls `python-code-v0`: `moonmill/PythonCode-v0`."""
    name, _, version = env_id.rpartition("-v")
    words = re.split(r"[-_]", name)
    return f"moonmill/{''.join(word[:1].upper() + word[1:] for word in words)}-v{version}"


def register_envs() -> None:
    """Register with Gymnasium what has been registered here. Importing this module does so; what is registered
    afterwards takes another call."""
    for spec in list_envs():
        if gymnasium_id(spec.id) not in gymnasium.registry:
            gymnasium.register(gymnasium_id(spec.id), f"{__name__}:GymnasiumEnv", kwargs={"env_id": spec.id})


def as_message(action: object, turn: int) -> Message:
    """The message that a text means.

    A call is JSON between tags, `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; one that cannot be read is one
    with an error, which the environment answers.

    Raises:
        ConfigError: the action is no text.
    """
    if not isinstance(action, str):
        raise ConfigError(
            f"step: the action is {action!r:.100}, but should be a text: what the model says, in which a tool call is "
            '<tool_call>{"name": …, "arguments": {…}}</tool_call>'
        )
    text = encodable(action)
    calls = tuple(_as_tool_call(found[1], f"call-{turn}-{i}") for i, found in enumerate(_CALL.finditer(text)))
    return Message("assistant", _CALL.sub("", text).strip() if calls else text, tool_calls=calls)


def _as_tool_call(text: str, id: str) -> ToolCall:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as e:
        return ToolCall(id, "", error=f"between the tags stands no JSON ({e})")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall(id, "", error='a call is {"name": …, "arguments": {…}}')
    arguments = call.get("arguments", {})
    return ToolCall(id, call["name"], arguments if isinstance(arguments, dict | str) else json.dumps(arguments))


def _as_call(call: ToolCall) -> str:
    return f"<tool_call>{json.dumps({'name': call.name, 'arguments': call.arguments})}</tool_call>"


def _as_text(messages: Sequence[Message]) -> str:
    return shortened("\n\n".join(m.content for m in messages), _LONGEST - 100)


register_envs()
