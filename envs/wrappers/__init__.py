"""Wrappers in Gymnasium's style: an environment around an environment, that changes one thing about it.

A config lists them under `env.wrappers`, the innermost first; `factory_of` makes environments as such a config says.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import asdict

from moonmill.config import EnvConfig
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.wrapper import Wrapper
from moonmill.envs.wrappers.curriculum import Curriculum
from moonmill.envs.wrappers.limits import Limits
from moonmill.envs.wrappers.observations import CutObservation, ObservationWrapper
from moonmill.envs.wrappers.record import Record
from moonmill.envs.wrappers.rewards import ClipReward, RewardWrapper, ScaleReward
from moonmill.registry import make
from moonmill.wrapper_config import (
    ClipRewardConfig,
    CurriculumConfig,
    CutObservationConfig,
    LimitsConfig,
    RecordConfig,
    ScaleRewardConfig,
    WrapperConfig,
)

__all__ = [
    "ClipReward",
    "Curriculum",
    "CutObservation",
    "Limits",
    "ObservationWrapper",
    "Record",
    "RewardWrapper",
    "ScaleReward",
    "Wrapper",
    "factory_of",
    "wrap",
]

_CLASSES: dict[type[WrapperConfig], Callable[..., Wrapper]] = {
    LimitsConfig: Limits,
    CutObservationConfig: CutObservation,
    ScaleRewardConfig: ScaleReward,
    ClipRewardConfig: ClipReward,
    RecordConfig: Record,
    CurriculumConfig: Curriculum,
}


def wrap(env: MultiTurnEnv, wrappers: Iterable[WrapperConfig]) -> MultiTurnEnv:
    """`env` in `wrappers`, the first of which is the innermost.

    Raises:
        ConfigError: a wrapper cannot be used so.
    """
    for config in wrappers:
        arguments: dict[str, Any] = asdict(config)
        env = _CLASSES[type(config)](env, **arguments)
    return env


def factory_of(config: EnvConfig) -> Callable[[], MultiTurnEnv]:
    """What makes the environment that a config's section `env` describes, one for each episode."""
    return partial(_make, config)


def _make(config: EnvConfig) -> MultiTurnEnv:
    return wrap(make(config.id, **config.args), config.wrappers)
