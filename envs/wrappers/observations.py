"""Wrappers around what a model is shown."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.lifecycle import Observation, Step
from moonmill.envs.returned import shortened
from moonmill.envs.wrapper import Wrapper
from moonmill.types import Message, Rollout

CUT_METRIC = "observation_characters_cut"


class ObservationWrapper(Wrapper):
    """Changes what the environment answers a turn with: override `observation`."""

    @abstractmethod
    def observation(self, messages: Observation) -> Observation:
        """The messages that the model is shown, in the place of `messages`."""

    def step(self, action: Message | str) -> Step:
        observation, reward, terminated, truncated, info = super().step(action)
        return self.observation(observation), reward, terminated, truncated, info


class CutObservation(ObservationWrapper):
    """Shows of a long message its beginning and its end. How much was left out is a metric.

    Args:
        env: what is wrapped.
        characters: of a message that are shown.
    """

    def __init__(self, env: MultiTurnEnv, *, characters: int) -> None:
        super().__init__(env)
        self.characters = characters
        self._cut = 0

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Any]:
        self._cut = 0
        return super().reset(seed=seed, options=options)

    def observation(self, messages: Observation) -> Observation:
        self._cut += sum(max(0, len(m.content) - self.characters // 2 * 2) for m in messages if self._is_long(m))
        return tuple(replace(m, content=shortened(m.content, self.characters)) for m in messages)

    def scored(self, rollout: Rollout) -> Rollout:
        before = rollout.metrics.get(CUT_METRIC, 0.0)
        return replace(rollout, metrics={**rollout.metrics, CUT_METRIC: before + self._cut})

    def _is_long(self, message: Message) -> bool:
        return len(message.content) > self.characters
