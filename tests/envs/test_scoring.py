"""From a finished episode to its reward."""

import math
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonmill import MultiTurnEnv, Rollout, Status, StopReason, metric, reward, stop
from moonmill.envs import EnvHost
from moonmill.envs.scoring import score
from moonmill.errors import EngineError
from tests.envs.parts import TASK, OneTask


def a_rollout(*turn_rewards: float) -> Rollout:
    return Rollout("r", "test-v0", TASK, Status.FINISHED, StopReason.ANSWERED, turn_rewards=turn_rewards)


def scored(env: MultiTurnEnv, *turn_rewards: float) -> Rollout:
    env.reset(options={"task": TASK})
    return score(env, "test-v0", a_rollout(*turn_rewards))


def returning(value: Any) -> MultiTurnEnv:
    """An environment whose only reward is `value`, or raises it."""

    class Env(OneTask):
        @reward
        def correct(self, rollout: Rollout) -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

    return Env()


class Many(OneTask):
    """Two rewards, a metric, and a stop method that is not asked."""

    @reward
    def correct(self, rollout: Rollout) -> bool:
        return True

    @reward(weight=-0.5)
    async def length(self, rollout: Rollout) -> int:
        await anyio.lowlevel.checkpoint()
        return 3

    @metric
    def turns(self, rollout: Rollout) -> float:
        return 7.0

    @stop
    def never(self) -> bool:
        raise AssertionError


def test_the_reward_is_the_weighted_sum_of_rewards_and_turn_rewards() -> None:
    rollout = scored(Many(), 0.25, 0.5)
    assert rollout.rewards == {"correct": 1.0, "length": 3.0}
    assert rollout.metrics == {"turns": 7.0}
    assert rollout.reward == 1.0 - 0.5 * 3 + 0.75
    assert (rollout.status, rollout.error) == (Status.FINISHED, None)


def test_turn_rewards_alone_make_a_reward() -> None:
    assert scored(OneTask(), 1.0, 0.5).reward == 1.5
    assert scored(OneTask()).reward == 0.0


def test_a_weight_of_zero_records_without_counting() -> None:
    class Env(OneTask):
        @reward(weight=0)
        def style(self, rollout: Rollout) -> float:
            return 5.0

    rollout = scored(Env())
    assert (rollout.reward, rollout.rewards) == (0.0, {"style": 5.0})


def test_none_is_unscored_and_not_zero() -> None:
    class Env(Many):
        @reward
        def judge(self, rollout: Rollout) -> None:
            return None

    rollout = scored(Env(), 1.0)
    assert (rollout.reward, rollout.status) == (None, Status.FINISHED)
    assert rollout.rewards == {"correct": 1.0, "length": 3.0}
    assert rollout.error == "test-v0: the reward 'judge' returned None"


def test_a_metric_without_a_value_is_left_out() -> None:
    class Env(OneTask):
        @metric
        def absent(self, rollout: Rollout) -> None:
            return None

    rollout = scored(Env())
    assert (rollout.reward, rollout.metrics) == (0.0, {})


class Scalar:
    """Like a number of numpy or torch."""

    def __float__(self) -> float:
        return 0.5


@pytest.mark.parametrize(("value", "number"), [(True, 1.0), (0, 0.0), (-2, -2.0), (Scalar(), 0.5), (100, 100.0)])
def test_what_is_a_number(value: Any, number: float) -> None:
    assert scored(returning(value)).reward == number


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e9, 100.1, 10**400, "1", [1.0], 1j, {}])
def test_a_reward_that_is_no_finite_number_within_bounds_fails_the_rollout(value: Any) -> None:
    rollout = scored(returning(value))
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.FAILED, StopReason.SCORING_ERROR, None)
    assert rollout.error == (
        f"test-v0: the reward 'correct' returned {value!r:.100}; "
        "it must be a finite number within [-100, 100] (reward_bounds)"
    )


def test_the_bounds_are_the_environments() -> None:
    class Env(Many):
        reward_bounds = (0.0, math.inf)

        @reward
        def below(self, rollout: Rollout) -> float:
            return -0.1

    assert "within [0, inf] (reward_bounds)" in str(scored(Env()).error)


def test_a_reward_that_no_learner_could_square_fails_the_rollout() -> None:
    class Env(OneTask):
        reward_bounds = (-math.inf, math.inf)

        @reward
        def huge(self, rollout: Rollout) -> float:
            return -1e308

    assert scored(Env()).error == (
        "test-v0: the reward 'huge' returned -1e+308; it must be a finite number, and not beyond ±1e+15"
    )


def test_a_sum_that_overflows_fails_the_rollout() -> None:
    class Env(OneTask):
        reward_bounds = (-math.inf, math.inf)

        @reward(weight=1e308)
        def huge(self, rollout: Rollout) -> float:
            return 10.0

    rollout = scored(Env())
    assert (rollout.status, rollout.reward) == (Status.FAILED, None)
    assert rollout.error == "test-v0: the sum of its rewards returned inf; it must be a finite number"


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(1)])
def test_a_reward_that_raises_fails_the_rollout_with_its_place(error: BaseException) -> None:
    rollout = scored(returning(error))
    assert (rollout.status, rollout.stop_reason) == (Status.FAILED, StopReason.SCORING_ERROR)
    assert f"test-v0: the reward 'correct' raised {type(error).__name__}: {error} ({__file__}:" in str(rollout.error)


def test_an_endless_error_loses_its_middle_once_and_keeps_its_place() -> None:
    """It goes into the log of every rollout, and into what a run ends with."""
    error = str(scored(returning(RuntimeError("first " + "x" * 1_000_000 + " last"))).error)
    assert error.startswith("test-v0: the reward 'correct' raised RuntimeError: first xxx")
    assert f"x last ({__file__}:" in error
    assert error.count("cut] …") == 1
    assert "… [998,011 characters cut] …" in error
    assert len(error) < 3000


def test_what_was_scored_before_the_failure_is_kept() -> None:
    class Env(Many):
        @metric
        def broken(self, rollout: Rollout) -> float:
            return math.nan

    rollout = scored(Env())
    assert (rollout.status, rollout.reward) == (Status.FAILED, None)
    assert rollout.rewards == {"correct": 1.0, "length": 3.0}
    assert rollout.metrics == {"turns": 7.0}
    assert rollout.error == "test-v0: the metric 'broken' returned nan; it must be a finite number"


def test_a_failure_of_the_infrastructure_is_no_scoring_error() -> None:
    with pytest.raises(EngineError, match="the judge is away"):
        scored(returning(EngineError("the judge is away")))


@given(st.floats() | st.integers() | st.text() | st.none() | st.booleans())
def test_whatever_a_reward_returns_the_rollout_has_a_finite_reward_or_none(value: Any) -> None:
    rollout = scored(returning(value))
    assert rollout.reward is None or math.isfinite(rollout.reward)
    assert (rollout.status is Status.FAILED) == (rollout.reward is None and value is not None)


def test_scoring_runs_on_the_episodes_thread() -> None:
    async def main() -> Rollout:
        async with EnvHost(Many, "test-v0") as host:
            await host.reset(TASK, 0)
            return await host.score(a_rollout())

    assert anyio.run(main).reward == -0.5
