"""How long the critic is trained alone."""

import pytest

from moonmill.algorithm_config import CriticConfig, PretrainConfig
from moonmill.errors import ConfigError
from moonmill.trainer.explained import Variance
from moonmill.trainer.warm_up import WarmUp, check_warm_up, has_stopped_rising, how_it_ended, most_steps


def course(*explained: float) -> list[Variance]:
    """Steps of these explained variances, their targets of variance 1."""
    return [Variance(1 - e, 1.0) for e in explained]


def length(config: CriticConfig, *explained: float) -> int:
    """Steps until the warm-up is over."""
    warm_up = WarmUp(config)
    for step, variance in enumerate(course(*explained)):
        if warm_up.over:
            return step
        warm_up.see(variance)
    assert warm_up.over
    return len(explained)


def test_by_itself_it_is_a_number_of_steps():
    assert length(CriticConfig(warmup_steps=3), *[0.0] * 5) == 3
    assert WarmUp(CriticConfig(warmup_steps=0)).over


def test_it_goes_on_while_explained_variance_rises_and_ends_when_that_has_stopped():
    config = PretrainConfig(window=1, patience=2, min_rise=0.05)
    assert not has_stopped_rising(course(0.0, 0.1, 0.2), config)
    assert not has_stopped_rising(course(0.0, 0.1, 0.2, 0.2), config)
    assert has_stopped_rising(course(0.0, 0.1, 0.2, 0.2, 0.24), config)
    assert not has_stopped_rising(course(0.0, 0.1, 0.2, 0.2, 0.26), config)


def test_a_rise_too_small_for_one_step_counts_over_several():
    config = PretrainConfig(window=1, patience=4, min_rise=0.05)

    def stops(rise: float) -> bool:
        return any(has_stopped_rising(course(*(rise * step for step in range(length))), config) for length in range(30))

    assert not stops(0.02)
    assert stops(0.01)


def test_it_is_the_mean_of_several_steps_that_has_to_rise():
    # The first step was luck. The means of four are .1875, .075, .125, .175, .225.
    rising = course(0.6, 0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
    assert has_stopped_rising(rising, PretrainConfig(window=1, patience=4))
    assert has_stopped_rising(rising[:7], PretrainConfig(window=4, patience=3))
    assert not has_stopped_rising(rising, PretrainConfig(window=4, patience=3))


def test_before_there_are_enough_steps_to_smooth_over_nothing_is_decided():
    assert not has_stopped_rising(course(*[0.0] * 9), PretrainConfig(window=10, patience=1))
    assert has_stopped_rising(course(*[0.0] * 11), PretrainConfig(window=10, patience=1))


def test_pre_training_has_a_least_and_a_most_number_of_steps():
    flat = [0.3] * 40
    pretrain = PretrainConfig(max_steps=30, window=2, patience=3)
    assert length(CriticConfig(warmup_steps=0, pretrain=pretrain), *flat) == 5
    assert length(CriticConfig(warmup_steps=12, pretrain=pretrain), *flat) == 12
    assert length(CriticConfig(warmup_steps=0, pretrain=pretrain), *(0.02 * step for step in range(40))) == 30
    assert most_steps(CriticConfig(warmup_steps=12, pretrain=pretrain)) == 30
    assert most_steps(CriticConfig(warmup_steps=12)) == 12
    assert most_steps(None) == 0


def test_steps_of_which_nothing_is_known_count_but_decide_nothing():
    pretrain = PretrainConfig(max_steps=20, window=2, patience=2)
    warm_up = WarmUp(CriticConfig(warmup_steps=0, pretrain=pretrain))
    for variance in (None, Variance(0.0, 0.0)) * 10:
        assert not warm_up.over
        warm_up.see(variance)
    assert warm_up.over


def test_what_is_left_of_it_after_a_checkpoint_is_the_same():
    pretrain = PretrainConfig(max_steps=30, window=3, patience=4)
    config = CriticConfig(warmup_steps=0, pretrain=pretrain)
    steps = course(0.0, 0.2, 0.3, 0.35, 0.33, 0.36, 0.31, 0.35, 0.34, 0.35, 0.36, 0.33)
    straight = WarmUp(config)
    ended = []
    for at in range(len(steps)):
        resumed = WarmUp(config)
        for variance in steps[:at]:
            resumed.see(variance)
        again = WarmUp(config)
        again.load_state_dict(resumed.state_dict())
        if not straight.over:
            straight.see(steps[at])
            again.see(steps[at])
            assert again.state_dict() == straight.state_dict()
        ended.append(straight.over)
    assert ended[-1]


def test_bounds_that_cannot_both_hold_are_refused():
    with pytest.raises(ConfigError, match=r"pretrain.max_steps: 5 is less than .*warmup_steps \(6\)"):
        check_warm_up(CriticConfig(warmup_steps=6, pretrain=PretrainConfig(max_steps=5)))
    check_warm_up(CriticConfig(warmup_steps=6, pretrain=PretrainConfig(max_steps=6)))


def test_why_it_ended_is_said_and_a_critic_that_learned_nothing_is_told_from_one_that_has():
    config = CriticConfig(warmup_steps=1, pretrain=PretrainConfig(max_steps=40))
    risen, sound = how_it_ended(config, 30, 0.4)
    assert risen.endswith("has not risen by 0.01 for 10 steps; explained variance 0.400")
    assert "(pretrain.max_steps: 40)" in how_it_ended(config, 40, 0.4)[0]
    assert sound == ""
    assert "explained variance is unknown" in how_it_ended(config, 30, None)[1]
    assert how_it_ended(CriticConfig(warmup_steps=8), 8, -1.0) == ("", "")
