"""Explained variance, bias by turn and calibration, by hand."""

import math

import pytest
import torch

from moonmill.trainer.algorithms.gae import skip_observation_gae
from moonmill.trainer.explained import Variance, explained_variance
from moonmill.trainer.value_health import bias_by_turn, calibration_error, turns_of, variance_of


def test_explained_variance_by_hand():
    # Targets 0, 1, 2, 3 have a variance of 1.25; the errors −1, 0, 0, 1 one of 0.5.
    variance = variance_of(torch.tensor([1.0, 1.0, 2.0, 2.0]), torch.arange(4.0))
    assert variance == pytest.approx((0.5, 1.25))
    assert explained_variance([variance]) == pytest.approx(1 - 0.5 / 1.25)


def test_a_constant_critic_explains_nothing_and_a_constant_target_cannot_be_explained():
    assert explained_variance([variance_of(torch.ones(4), torch.arange(4.0))]) == 0
    assert math.isnan(explained_variance([variance_of(torch.arange(4.0), torch.ones(4))]))


@pytest.mark.parametrize("reward", [1.0, 0.7, -1.0, 0.0, 1e4])
@pytest.mark.parametrize("value", [0.1, 0.6, -3.0])
def test_equal_returns_are_equal_though_float32_has_rounded_them(reward: float, value: float):
    """Else the critic of a policy that always succeeds would seem to know trillions of times less than nothing."""
    values = torch.randn(64, generator=torch.Generator().manual_seed(0)) * 0.05 + value
    advantages = skip_observation_gae(
        values, torch.tensor([0.0, 0.0, 0.0, reward] * 16), [4] * 16, gamma=1.0, lam=torch.ones(16)
    )
    variance = variance_of(values, advantages + values)
    assert variance.all == 0.0
    assert variance.left == pytest.approx(0.0025, rel=0.3)
    assert math.isnan(explained_variance([variance]))
    # One that is really another shows.
    assert variance_of(values, advantages + values + torch.eye(64)[0] * 1e-2).all > 0


def test_over_several_steps_one_whose_targets_hardly_vary_counts_for_little():
    steps = [Variance(0.5, 1.0), Variance(0.3, 1.0), Variance(0.02, 0.001)]
    assert explained_variance(steps) == pytest.approx(1 - 0.82 / 2.001)
    assert explained_variance(steps[2:]) == pytest.approx(-19)


def test_every_action_token_has_the_number_of_its_turn():
    # Two rollouts of two turns and of one; a turn may have no tokens.
    assert turns_of([(2, 1), (0, 3)], torch.device("cpu")).tolist() == [1, 1, 2, 2, 2, 2]


def test_bias_by_turn_by_hand():
    values = torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0])
    targets = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0])
    # Turn 1: +1, 0. Turn 2: +1, −0.5. Turn 9 is late and not told.
    assert bias_by_turn(values, targets, torch.tensor([1, 1, 2, 2, 9])) == {1: 0.5, 2: 0.25}


def test_calibration_by_hand():
    # Twenty tokens, two in each tenth by value: values 0, 0, 0.1, 0.1, … 0.9, 0.9.
    values = torch.arange(10).repeat_interleave(2) / 10
    assert calibration_error(values, values) == 0
    # A tenth whose targets are 0.2 and −0.2 off is right on average; one that is 0.5 off counts a tenth of that.
    targets = values.clone()
    targets[0] += 0.2
    targets[1] -= 0.2
    targets[18:] -= 0.5
    assert calibration_error(values, targets) == pytest.approx(0.05)


def test_equal_values_are_never_parted_so_that_order_does_not_matter():
    values, targets = torch.zeros(30), torch.cat([torch.zeros(20), torch.ones(10)])
    assert calibration_error(values, targets) == pytest.approx(1 / 3)
    draw = torch.Generator().manual_seed(0)
    values = torch.randint(0, 4, (57,), generator=draw) / 4
    targets = torch.rand(57, generator=draw)
    shuffled = torch.randperm(57, generator=draw)
    assert calibration_error(values, targets) == pytest.approx(calibration_error(values[shuffled], targets[shuffled]))


def test_fewer_tokens_than_tenths_are_each_their_own():
    assert calibration_error(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5])) == pytest.approx(0.5)
    assert calibration_error(torch.tensor([0.25]), torch.tensor([1.0])) == pytest.approx(0.75)
