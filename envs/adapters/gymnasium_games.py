"""Gymnasium's environments as ours: `gymnasium:FrozenLake-v1`, or `from_gymnasium` with any `gymnasium.Env`.

A task is a seed, which `gymnasium.Env.reset` gets: everything random in the game hangs from it, and the same answers to
the same task give the same episode. A seed belongs to one split. An answer that is no action is told to the model, and
costs a turn. Rewards are those of the turns.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium
from msgspec.structs import replace

from moonmill.envs.adapters.known_games import KNOWN, Known
from moonmill.envs.adapters.spaces import ActionSpace, Given, check_observations, told
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.marks import metric
from moonmill.envs.tools import ToolArgumentsError, tool
from moonmill.errors import ConfigError, EnvCodeError
from moonmill.types import Message, Rollout, Task

Game = gymnasium.Env[Any, Any]
EVAL_SHARE = 8
"""One seed in so many belongs to `eval`."""
_MAX_TURNS = 100
"""Where the game has no limit of its own."""
_COLOURED = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m", re.DOTALL)


def from_gymnasium(
    id: str | Callable[[], Game],
    *,
    interface: Literal["text", "tool"] = "text",
    kwargs: Mapping[str, Any] | None = None,
    actions: Sequence[str] = (),
    rules: str = "",
    max_turns: int | None = None,
) -> MultiTurnEnv:
    """An environment of Gymnasium as one of ours.

    Args:
        id: what `gymnasium.make` takes, or a function that makes a `gymnasium.Env`.
        interface: with `text`, the last line of a message is the action; with `tool`, the action is the argument of a
            tool `act`, and a message without a call gives the game up.
        kwargs: arguments of `gymnasium.make`, or of the function.
        actions: names of the actions of a Discrete space, in their order.
        rules: what the model is told of the game.
        max_turns: 100 if None, unless the game says how many steps it has at most.

    Raises:
        ConfigError: there is no such environment, or a model cannot play it: its spaces have no words.
    """
    if interface not in ("text", "tool"):
        raise ConfigError(f"gymnasium: interface is {interface!r}, but should be 'text' or 'tool'")
    kind = TextGame if interface == "text" else ToolGame
    return kind(id, kwargs or {}, actions, rules, max_turns)


class _GymnasiumGame(MultiTurnEnv):
    """What both interfaces share. The arguments are those of `from_gymnasium`."""

    reward_bounds = (-10_000.0, 10_000.0)
    how_to_answer: str

    def __init__(
        self,
        id: str | Callable[[], Game],
        kwargs: Mapping[str, Any],
        actions: Sequence[str],
        rules: str,
        max_turns: int | None,
    ) -> None:
        name, known = _known(id)
        self.game = _opened(id, known, kwargs)
        if not name and self.game.spec:
            name = self.game.spec.name
        self._told = known.told if known else None
        self.actions = ActionSpace(self.game.action_space, actions or (known.actions if known else ()))
        if not self._told and self.game.render_mode != "ansi":
            check_observations(self.game.observation_space)
        rules = rules or (known.rules if known else f"Play {name or 'a game'}.")
        self._prompt = f"{rules}\n{self.how_to_answer} An action is {self.actions.words}."
        self.max_turns = max_turns or (self.game.spec and self.game.spec.max_episode_steps) or _MAX_TURNS
        self.terminated = self.truncated = False
        self.invalid = 0

    def tasks(self, split: str) -> Iterator[Task]:
        if split not in ("train", "eval"):
            raise ConfigError(f"an environment of gymnasium has no split {split!r}: it has train and eval")
        rng = self.task_rng(split)
        while True:
            seed = rng.randint(1, 2**31 - 1)
            if (seed % EVAL_SHARE == 0) == (split == "eval"):
                yield Task(self._prompt, seed=seed)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        messages, info = super().reset(seed=seed, options=options)
        observation, _ = self.game.reset(seed=self.task.seed)
        *before, last = messages
        return (*before, replace(last, content=f"{last.content}\n\n{self._shown(observation)}")), info

    def close(self) -> None:
        self.game.close()

    def act(self, given: Given) -> str:
        """One step of the game; returns what the model is shown.

        Raises:
            ToolArgumentsError: that is no action, or the game is over.
        """
        try:
            if self.terminated or self.truncated:
                raise ToolArgumentsError("error: the game is over")
            action = self.actions.read(given)
        except ToolArgumentsError:
            self.invalid += 1
            raise
        observation, reward, self.terminated, self.truncated, _ = self.game.step(action)
        self.add_reward(float(reward))
        return self._shown(observation)

    def _shown(self, observation: Any) -> str:
        if self._told:
            return self._told(observation)
        if self.game.render_mode != "ansi":
            return told(observation)
        drawn = self.game.render()
        if not isinstance(drawn, str):
            raise EnvCodeError(
                f"{self.game}.render() returned {drawn!r:.200}, but with render_mode='ansi' it is a text"
            )
        return _COLOURED.sub(r"[\1]", drawn).strip("\n")

    @metric
    def invalid_actions(self, rollout: Rollout) -> float:
        return float(self.invalid)


class TextGame(_GymnasiumGame):
    """A game whose actions are texts: the last line of a message."""

    how_to_answer = "The last line of your answer is your action."

    def step(self, action: Message | str) -> Any:
        assert isinstance(action, Message)
        if self.finish_reason == "length" or action.tool_calls:
            return super().step(action)
        text = action.content.strip()
        whole = isinstance(self.game.action_space, gymnasium.spaces.Text)
        try:
            shown = self.act(text if whole else text.rpartition("\n")[2])
        except ToolArgumentsError as e:
            shown = str(e)
        return shown, 0.0, self.terminated, self.truncated, {}


class ToolGame(_GymnasiumGame):
    """A game whose actions are calls of a tool."""

    how_to_answer = "Call `act` with your action."

    @tool(name="act")
    def call(self, action: Given) -> str:
        """Do one action in the game.

        Args:
            action: as the task says
        """
        return self.act(action)

    def step(self, action: Message | str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or self.terminated, truncated or self.truncated, info


def _known(id: str | Callable[[], Game]) -> tuple[str, Known | None]:
    """What the game is called, and what is known of it; of what a function makes, nothing."""
    if not isinstance(id, str):
        return "", None
    try:
        spec = gymnasium.spec(id)
    except (gymnasium.error.Error, ImportError) as e:
        raise ConfigError(f"gymnasium:{id}: {e}") from e
    return spec.name, KNOWN.get(spec.name) if spec.namespace is None else None


def _opened(id: str | Callable[[], Game], known: Known | None, kwargs: Mapping[str, Any]) -> Game:
    if not isinstance(id, str):
        game: object = id(**kwargs)
        if not isinstance(game, gymnasium.Env):
            raise EnvCodeError(f"from_gymnasium: {id!r:.100} made {game!r:.200}, but should make a gymnasium.Env")
        return game
    drawing = {"render_mode": "ansi"} if known and known.told is None else {}
    try:
        return gymnasium.make(id, **{**drawing, **kwargs})
    except (gymnasium.error.Error, ImportError, TypeError) as e:
        raise ConfigError(f"gymnasium:{id} cannot be made: {e}") from e
