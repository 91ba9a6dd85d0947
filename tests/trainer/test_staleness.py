"""Weights by staleness against numbers worked out by hand."""

import pytest
import torch

from moonmill.trainer.algorithms.staleness import staleness_weights

VERSIONS = torch.tensor([5, 4, 5, 2, 3])
"""Of two rollouts: the first began at version 4, the second at version 2."""


@pytest.mark.parametrize(
    ("power", "expected"),
    [(1.0, [1 / 2] * 3 + [1 / 4] * 2), (0.5, [2**-0.5] * 3 + [1 / 2] * 2), (0.0, [1.0] * 5)],
)
def test_a_rollout_is_weighed_by_its_oldest_token(power, expected):
    assert staleness_weights(VERSIONS, [3, 2], 5, power).tolist() == pytest.approx(expected)


def test_what_is_fresh_counts_in_full():
    assert staleness_weights(torch.tensor([7, 7]), [1, 1], 7, 1.0).tolist() == [1.0, 1.0]
