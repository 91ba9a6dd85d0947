"""From a finished episode to its reward.

A rollout's reward is the weighted sum of its `@reward` methods plus its turns' rewards. Every value is finite and
within the environment's `reward_bounds`, else the rollout fails: a wrong number never reaches the trainer.
"""

from typing import Any

from msgspec.structs import replace

from moonmill.blame import blaming, error_of
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.calls import settled
from moonmill.envs.returned import UNBOUNDED, as_number
from moonmill.envs.wrapper import Wrapper
from moonmill.errors import EnvCodeError
from moonmill.types import Rollout, Status, StopReason


def score(env: MultiTurnEnv, env_id: str, rollout: Rollout) -> Rollout:
    """`rollout` with rewards, metrics and reward filled in; `failed`, with what there is, where a value is unusable."""
    if isinstance(env, Wrapper):
        return _sound(f"{env_id}: {type(env).__name__}.scored", env.scored(score(env.env, env_id, rollout)))
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}
    unscored: list[str] = []
    total = sum(rollout.turn_rewards)
    try:
        for mark in env._moonmill_class.marks:
            if mark.kind == "stop":
                continue
            what = f"the {mark.kind} {mark.method!r}"
            value = _ask(env, env_id, what, mark.method, rollout)
            if mark.kind == "metric":
                if value is not None:
                    metrics[mark.method] = as_number(f"{env_id}: {what}", value, UNBOUNDED)
            elif value is None:
                unscored.append(f"{what} returned None")
            else:
                rewards[mark.method] = as_number(f"{env_id}: {what}", value, env.reward_bounds)
                total += mark.weight * rewards[mark.method]
        total = as_number(f"{env_id}: the sum of its rewards", total, UNBOUNDED)
    except EnvCodeError as e:
        return replace(
            rollout,
            status=Status.FAILED,
            stop_reason=StopReason.SCORING_ERROR,
            rewards=rewards,
            metrics=metrics,
            error=error_of(e),
        )
    if unscored:
        return replace(rollout, rewards=rewards, metrics=metrics, error=f"{env_id}: {', '.join(unscored)}")
    return replace(rollout, reward=total, rewards=rewards, metrics=metrics)


def _sound(where: str, rollout: object) -> Rollout:
    """What a wrapper has made of a rollout, with finite numbers.

    Raises:
        EnvCodeError: it is no rollout, or has others.
    """
    if not isinstance(rollout, Rollout):
        raise EnvCodeError(f"{where} returned {rollout!r:.200}, but should return the rollout")
    rewards, metrics = (
        {name: as_number(f"{where}, for {name!r},", value, UNBOUNDED) for name, value in numbers.items()}
        for numbers in (rollout.rewards, rollout.metrics)
    )
    reward = (
        rollout.reward if rollout.reward is None else as_number(f"{where}, as the reward,", rollout.reward, UNBOUNDED)
    )
    return replace(rollout, reward=reward, rewards=rewards, metrics=metrics)


def _ask(env: MultiTurnEnv, env_id: str, what: str, method: str, rollout: Rollout) -> Any:
    with blaming(env_id, what):
        return settled(env, getattr(env, method)(rollout))
