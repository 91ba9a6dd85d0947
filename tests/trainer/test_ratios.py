"""The one exp of objectives, corrections and penalties: as it is within its bound, finite and flat beyond."""

import math

import torch

from moonmill.trainer.algorithms.ratios import LARGEST, ratio_of


def test_within_the_bound_a_ratio_and_its_gradient_are_to_the_bit_what_they_are_without():
    log_ratio = torch.tensor([-1e4, -100.0, -1.0, 0.0, 0.5, LARGEST], requires_grad=True)
    (gradient,) = torch.autograd.grad(ratio_of(log_ratio).sum(), log_ratio)
    plain = log_ratio.detach().exp()
    assert torch.equal(ratio_of(log_ratio), plain)
    assert torch.equal(gradient, plain)


def test_beyond_it_a_ratio_is_that_of_the_bound_without_gradient():
    log_ratio = torch.tensor([LARGEST + 1, 1e4, math.inf], requires_grad=True)
    (gradient,) = torch.autograd.grad(ratio_of(log_ratio).sum(), log_ratio)
    assert torch.equal(ratio_of(log_ratio), torch.full((3,), LARGEST).exp())
    assert gradient.tolist() == [0.0, 0.0, 0.0]
