"""Group advantages without a scale against numbers worked out by hand."""

import pytest
import torch

from moonmill.trainer.algorithms.group_mean import group_mean


def advantages(rewards: list[float], groups: list[int]) -> list[float]:
    return group_mean(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)).tolist()


def test_a_rollout_is_compared_with_its_groups_mean():
    # Mean 0.25, and no division by the standard deviation (0.5).
    assert advantages([1, 0, 0, 0], [0] * 4) == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_groups_may_be_interleaved_and_differ_in_size():
    # Group 0: 1, 0 with mean 0.5. Group 1: 2, 4, 9 with mean 5.
    assert advantages([1, 2, 0, 4, 9], [0, 1, 0, 1, 1]) == pytest.approx([0.5, -3, -0.5, -1, 4])


def test_a_group_without_variance_has_exactly_no_advantage():
    # 0.1 + 0.1 + 0.1 is not 3·0.1 in binary.
    assert advantages([0.1, 0.1, 0.1], [0, 0, 0]) == [0, 0, 0]


def test_a_group_of_one_has_no_advantage():
    assert advantages([5.0], [3]) == [0]
