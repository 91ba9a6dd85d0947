"""Wrappers around rewards. Each reward, of the episode before its weight or of a turn, is changed by itself.

What the environment gives is checked against its own bounds first: no wrapper makes a wrong number a right one, and
what is unscored or failed stays so. Success is told by what rewards were before: `Rollout.unshaped` keeps it.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.lifecycle import Observation, Step
from moonmill.envs.returned import as_number
from moonmill.envs.wrapper import Wrapper, innermost
from moonmill.errors import ConfigError
from moonmill.types import Message, Rollout


class RewardWrapper(Wrapper):
    """Changes rewards: override `reward`, with a function that never falls where its argument rises."""

    _earned = 0.0
    """What the turns have been given so far, before it was changed."""

    @abstractmethod
    def reward(self, reward: float) -> float:
        """What stands in the place of `reward`."""

    @property
    def reward_bounds(self) -> tuple[float, float]:  # type: ignore[override]
        """Those of the wrapped environment, changed alike."""
        low, high = self.env.reward_bounds
        return self.reward(low), self.reward(high)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Any]:
        self._earned = 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: Message | str) -> Step:
        observation, reward, terminated, truncated, info = super().step(action)
        if reward:  # A turn that earns nothing is not a reward of 0.
            where = f"{type(innermost(self)).__name__}.step, as the turn's reward,"
            given = as_number(where, reward, self.env.reward_bounds)
            self._earned += given
            reward = self.reward(given)
        return observation, reward, terminated, truncated, info

    def scored(self, rollout: Rollout) -> Rollout:
        if rollout.reward is None:
            return rollout
        rewards = {name: self.reward(value) for name, value in rollout.rewards.items()}
        total = sum(rollout.turn_rewards) + self._weighed(rewards)
        # The innermost of several is given what the environment gave.
        unshaped = self._earned + self._weighed(rollout.rewards) if rollout.unshaped is None else rollout.unshaped
        return replace(rollout, rewards=rewards, reward=total, unshaped=unshaped)

    def _weighed(self, rewards: Mapping[str, float]) -> float:
        weights = {mark.method: mark.weight for mark in self._moonmill_class.marks}
        return sum(weights[name] * value for name, value in rewards.items())


class ScaleReward(RewardWrapper):
    """Multiplies each reward.

    Args:
        env: what is wrapped.
        factor: above 0.
    """

    def __init__(self, env: MultiTurnEnv, *, factor: float) -> None:
        super().__init__(env)
        if not factor > 0:
            raise ConfigError(f"scale_reward: factor is {factor!r}, but should be a number above 0")
        self.factor = factor

    def reward(self, reward: float) -> float:
        return reward * self.factor


class ClipReward(RewardWrapper):
    """Clips each reward.

    Args:
        env: what is wrapped.
        low: a lower reward becomes this.
        high: a higher reward becomes this.
    """

    def __init__(self, env: MultiTurnEnv, *, low: float, high: float) -> None:
        super().__init__(env)
        if not low < high:
            raise ConfigError(f"clip_reward: low is {low!r} and high {high!r}, but low should be below high")
        self.low, self.high = low, high

    def reward(self, reward: float) -> float:
        return min(max(reward, self.low), self.high)
