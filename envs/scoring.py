"""From a finished episode to its reward.

A rollout's reward is the weighted sum of its `@reward` methods plus its turns' rewards. Every value is finite and
within the environment's `reward_bounds`, else the rollout fails: a wrong number never reaches the trainer.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from moonmill.envs.base import MultiTurnEnv
from moonmill.errors import EnvCodeError
from moonmill.types import Rollout, Status, StopReason

Guarded = Callable[..., Awaitable[Any]]
"""Calls the author's code where it belongs: what is being called, the method, its arguments."""


async def score(env: MultiTurnEnv, env_id: str, rollout: Rollout, guarded: Guarded) -> Rollout:
    """`rollout` with rewards, metrics and reward filled in; `failed` where a value cannot be used."""
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}
    total: float | None = 0.0
    try:
        for turn, value in enumerate(rollout.turn_rewards):
            checked(value, f"the reward of turn {turn}", env_id, env.reward_bounds)
        for mark in env._marks:
            if mark.kind == "stop":
                continue
            what = f"the {mark.kind} {mark.method!r}"
            value = await guarded(what, getattr(env, mark.method), rollout)
            if mark.kind == "metric":
                metrics[mark.method] = checked(value, what, env_id, (-math.inf, math.inf))
            elif value is None:
                total = None
            else:
                rewards[mark.method] = checked(value, what, env_id, env.reward_bounds)
                total = None if total is None else total + mark.weight * rewards[mark.method]
    except EnvCodeError as e:
        return replace(rollout, status=Status.FAILED, stop_reason=StopReason.SCORING_ERROR, error=str(e))
    reward = None if total is None else total + sum(rollout.turn_rewards)
    error = rollout.error if reward is not None else "a reward method returned None"
    return replace(rollout, reward=reward, rewards=rewards, metrics=metrics, error=error)


def checked(value: Any, what: str, env_id: str, bounds: tuple[float, float]) -> float:
    """`value` as a float. Raises `EnvCodeError` where it is not a finite number within `bounds`."""
    low, high = bounds
    if isinstance(value, bool | int | float) and math.isfinite(value) and low <= value <= high:
        return float(value)
    limits = "" if math.isinf(high) else f" within [{low:g}, {high:g}] (reward_bounds)"
    raise EnvCodeError(f"{env_id}: {what} returned {value!r:.100}; it must be a finite number{limits}")
