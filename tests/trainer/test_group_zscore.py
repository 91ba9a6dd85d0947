"""Group-relative advantages against numbers worked out by hand."""

import pytest
import torch

from moonmill.trainer.algorithms.group_zscore import group_zscore


def zscore(rewards: list[float], groups: list[int], epsilon: float = 1e-12) -> list[float]:
    advantages: list[float] = group_zscore(
        torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), epsilon=epsilon
    ).tolist()
    return advantages


def test_a_group_is_measured_in_its_own_standard_deviations():
    # Mean 0.25; sample variance (0.75² + 3·0.25²)/3 = 0.25, so std 0.5.
    assert zscore([1, 0, 0, 0], [0] * 4) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_groups_may_be_interleaved_and_differ_in_size():
    # Group 0: 1, 0 with mean 0.5 and std √0.5. Group 1: 2, 4, 6 with mean 4 and std 2.
    assert zscore([1, 2, 0, 4, 6], [0, 1, 0, 1, 1]) == pytest.approx([0.5**0.5, -1, -(0.5**0.5), 0, 1])


def test_a_group_without_variance_has_no_advantage():
    assert zscore([0.1, 0.1, 0.1], [0, 0, 0]) == [0, 0, 0]


def test_a_group_of_one_has_no_advantage():
    assert zscore([5.0], [3]) == [0]


def test_epsilon_is_added_to_the_standard_deviation():
    # std √0.5, so ±0.5 / (√0.5 + 1).
    assert zscore([1, 0], [0, 0], epsilon=1.0) == pytest.approx([0.5 / (0.5**0.5 + 1), -0.5 / (0.5**0.5 + 1)])
