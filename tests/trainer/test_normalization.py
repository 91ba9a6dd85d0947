"""What each token weighs, against numbers worked out by hand."""

import pytest

from moonmill.trainer.algorithms.normalization import token_weights


def weights(kind, lengths: list[int], tokens: int, rollouts: int) -> list[float]:
    return token_weights(lengths, lengths, kind, tokens=tokens, rollouts=rollouts, constant=10).tolist()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token", [1 / 6] * 3),
        ("sequence", [1 / 3, 1 / 3 / 2, 1 / 3 / 2]),
        ("constant", [1 / 30] * 3),
    ],
)
def test_a_micro_batch_is_weighed_as_part_of_its_batch(kind, expected):
    # Rollouts of 1 and 2 tokens; the third of the batch, with 3, is in another micro-batch.
    assert weights(kind, [1, 2], 6, 3) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_the_weights_of_a_batch_sum_to_one(kind):
    assert sum(weights(kind, [1, 2, 7], 10, 3)) == pytest.approx(1.0)


def test_a_branch_weighs_as_part_of_its_rollout():
    # The branches, of 1 and 2 tokens, of one rollout; the other of the batch is in another micro-batch.
    found = token_weights([1, 2], [3, 3], "sequence", tokens=5, rollouts=2, constant=10)
    assert found.tolist() == pytest.approx([1 / 6] * 3)
