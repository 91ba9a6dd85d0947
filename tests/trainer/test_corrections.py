"""Corrections against weights worked out by hand."""

import math

import pytest
import torch

from moonmill.trainer.algorithms.corrections import icepop, tis

LOG = [math.log(r) for r in (0.25, 1.0, 3.0, 1.5, 4.0)]
"""Ratios of two rollouts: 0.25, 1, 3 with the product 0.75; 1.5, 4 with the product 6."""
LENGTHS = [3, 2]


def log_ratio() -> torch.Tensor:
    return torch.tensor(LOG, dtype=torch.float64, requires_grad=True)


def test_tis_truncates_each_tokens_ratio_from_above():
    weights, counts = tis(log_ratio(), LENGTHS, level="token", cap=2.0)
    assert weights.tolist() == pytest.approx([0.25, 1.0, 2.0, 1.5, 2.0])
    assert counts.tolist() == [True] * 5


def test_tis_of_sequences_truncates_the_product():
    weights, counts = tis(log_ratio(), LENGTHS, level="sequence", cap=2.0)
    assert weights.tolist() == pytest.approx([0.75, 0.75, 0.75, 2.0, 2.0])
    assert counts.tolist() == [True] * 5


def test_icepop_drops_tokens_outside_of_the_band_and_weights_the_rest():
    weights, counts = icepop(log_ratio(), LENGTHS, level="token", low=0.5, high=3.5)
    assert weights.tolist() == pytest.approx([0.0, 1.0, 3.0, 1.5, 0.0])
    assert counts.tolist() == [False, True, True, True, False]


def test_icepop_of_sequences_drops_whole_rollouts():
    weights, counts = icepop(log_ratio(), LENGTHS, level="sequence", low=0.5, high=5.0)
    assert weights.tolist() == pytest.approx([0.75, 0.75, 0.75, 0.0, 0.0])
    assert counts.tolist() == [True, True, True, False, False]


def test_the_band_includes_its_ends():
    exact = torch.tensor([0.5, 2.0], dtype=torch.float64).log()
    assert icepop(exact, [2], level="token", low=0.5, high=2.0)[1].tolist() == [True, True]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_where_the_policies_agree_every_weight_is_one(level):
    same = torch.zeros(5)
    assert tis(same, LENGTHS, level=level, cap=2.0)[0].tolist() == [1.0] * 5
    assert icepop(same, LENGTHS, level=level, low=0.5, high=5.0)[0].tolist() == [1.0] * 5


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_ratio_that_overflows_is_truncated_or_dropped(level):
    far = torch.tensor([1000.0])
    assert tis(far, [1], level=level, cap=2.0)[0].tolist() == [2.0]
    weights, counts = icepop(far, [1], level=level, low=0.5, high=5.0)
    assert (weights.tolist(), counts.tolist()) == ([0.0], [False])


def test_weights_have_no_gradient():
    assert not tis(log_ratio(), LENGTHS, level="sequence", cap=2.0)[0].requires_grad
    assert not icepop(log_ratio(), LENGTHS, level="token", low=0.5, high=5.0)[0].requires_grad
