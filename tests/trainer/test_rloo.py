"""Leave-one-out advantages against numbers worked out by hand."""

import pytest
import torch

from moonmill.trainer.algorithms.group_mean import group_mean
from moonmill.trainer.algorithms.rloo import rloo


def advantages(rewards: list[float], groups: list[int]) -> list[float]:
    return rloo(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)).tolist()


def test_a_rollout_is_compared_with_the_mean_of_the_others():
    # 1 − (0 + 0 + 2)/3 = 1/3; 0 − (1 + 0 + 2)/3 = −1; 2 − (1 + 0 + 0)/3 = 5/3.
    assert advantages([1, 0, 0, 2], [0] * 4) == pytest.approx([1 / 3, -1, -1, 5 / 3])


def test_groups_may_be_interleaved_and_differ_in_size():
    # Group 0: 1 − 0, 0 − 1. Group 1: 2 − (4 + 9)/2, 4 − (2 + 9)/2, 9 − (2 + 4)/2.
    assert advantages([1, 2, 0, 4, 9], [0, 1, 0, 1, 1]) == pytest.approx([1, -4.5, -1, -1.5, 6])


def test_it_is_the_difference_to_the_mean_times_k_over_k_minus_1():
    rewards, groups = torch.tensor([0.3, 0.9, 0.1, 0.4, 0.8], dtype=torch.float64), torch.zeros(5)
    assert rloo(rewards, groups).tolist() == pytest.approx((group_mean(rewards, groups) * 5 / 4).tolist())


def test_a_group_without_variance_has_exactly_no_advantage():
    assert advantages([0.1, 0.1, 0.1], [0, 0, 0]) == [0, 0, 0]


def test_a_group_of_one_has_no_advantage():
    assert advantages([5.0], [3]) == [0]
