"""`cispo` against losses and gradients worked out by hand."""

import math

import pytest
import torch

from moonmill.trainer.algorithms.cispo import cispo


def run(ratios: list[float], advantages: list[float], low: float | None = None, high: float = 4.0):
    """Losses, gradients with respect to logπ_θ, and mask, for a behaviour log-probability of −2."""
    behaviour = torch.full((len(ratios),), -2.0, dtype=torch.float64)
    logprobs = (behaviour + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    loss, kept = cispo(logprobs, behaviour, torch.tensor(advantages, dtype=torch.float64), low=low, high=high)
    torch.autograd.backward(loss.sum())
    assert logprobs.grad is not None
    return loss.tolist(), logprobs.grad.tolist(), kept.tolist()


def test_inside_the_bounds_a_token_is_weighted_with_its_ratio():
    # r = 2: logπ = −2 + ln 2; loss = −2·3·(−2 + ln 2), gradient −2·3.
    loss, grad, kept = run([2.0], [3.0])
    assert (loss, grad, kept) == ([pytest.approx(-6 * (-2 + math.log(2)))], [pytest.approx(-6.0)], [True])


def test_beyond_them_it_keeps_the_gradient_of_the_bound_whatever_the_advantages_sign():
    # At most 1 + 4 = 5, at least 1 − 0.5 = 0.5.
    _, grad, kept = run([7.0, 7.0, 0.25, 0.25], [1.0, -1.0, 1.0, -1.0], low=0.5)
    assert grad == pytest.approx([-5.0, 5.0, -0.5, 0.5])
    assert kept == [True] * 4


def test_without_a_lower_bound_small_ratios_stay_small():
    assert run([0.01], [1.0])[1] == pytest.approx([-0.01])


def test_a_ratio_that_overflows_is_truncated():
    logprobs = torch.tensor([0.0], requires_grad=True)
    loss, _ = cispo(logprobs, torch.tensor([-1000.0]), torch.tensor([1.0]), low=None, high=4.0)
    torch.autograd.backward(loss.sum())
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-5.0]
