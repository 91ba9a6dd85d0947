"""Weights by staleness against numbers worked out by hand."""

import pytest
import torch

from moonmill.trainer.algorithms.staleness import staleness_weights

OLDEST = torch.tensor([4, 2])
"""Of two rollouts, with 3 and 2 tokens."""


@pytest.mark.parametrize(
    ("power", "expected"),
    [(1.0, [1 / 2] * 3 + [1 / 4] * 2), (0.5, [2**-0.5] * 3 + [1 / 2] * 2), (0.0, [1.0] * 5)],
)
def test_a_rollout_is_weighed_by_its_oldest_token(power, expected):
    assert staleness_weights(OLDEST, [3, 2], 5, power).tolist() == pytest.approx(expected)


def test_what_is_fresh_counts_in_full():
    assert staleness_weights(torch.tensor([7, 7]), [1, 1], 7, 1.0).tolist() == [1.0, 1.0]
