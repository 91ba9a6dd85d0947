"""`dis` against losses and gradients worked out by hand."""

import math

import pytest
import torch

from moonmill.trainer.algorithms.dis import dis


def run(ratios: list[float], advantages: list[float], low: float = 0.3, high: float = 5.0):
    """Losses, gradients with respect to logπ_θ, and mask, for a behaviour log-probability of −2."""
    behaviour = torch.full((len(ratios),), -2.0, dtype=torch.float64)
    logprobs = (behaviour + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    loss, kept = dis(logprobs, behaviour, torch.tensor(advantages, dtype=torch.float64), low=low, high=high)
    torch.autograd.backward(loss.sum())
    assert logprobs.grad is not None
    return loss.tolist(), logprobs.grad.tolist(), kept.tolist()


def test_on_unchanged_weights_it_is_the_policy_gradient():
    # r = 1: loss = −Â·logπ = −0.5·(−2) = 1, gradient −Â.
    loss, grad, kept = run([1.0], [0.5])
    assert (loss, grad, kept) == ([pytest.approx(1.0)], [pytest.approx(-0.5)], [True])


def test_the_gradient_of_a_kept_token_is_weighted_with_its_ratio():
    # r = 2: logπ = −2 + ln 2; loss = −2·3·(−2 + ln 2), gradient −r·Â = −6.
    loss, grad, _ = run([2.0], [3.0])
    assert loss == [pytest.approx(-6 * (-2 + math.log(2)))]
    assert grad == [pytest.approx(-6.0)]


def test_a_ratio_outside_of_the_band_has_no_loss_and_no_gradient_whatever_the_advantages_sign():
    ratios = [0.5, 0.5, 7.0, 7.0]
    loss, grad, kept = run(ratios, [1.0, -1.0, 1.0, -1.0])
    assert kept == [False] * 4
    assert loss == [0.0] * 4
    assert grad == [0.0] * 4


def test_the_band_is_open_on_both_sides():
    # Powers of two are exact: 1 − 0.5 = 0.5 and 1 + 1 = 2 themselves are masked.
    _, _, kept = run([0.5, 0.5000001, 1.9999999, 2.0], [1.0] * 4, low=0.5, high=1.0)
    assert kept == [False, True, True, False]


def test_the_ratio_itself_is_not_differentiated():
    # Were it, the gradient of −r·Â·logπ would be −r·Â·(1 + logπ).
    _, grad, _ = run([1.5], [1.0])
    assert grad == [pytest.approx(-1.5)]


def test_a_ratio_that_overflows_is_masked():
    logprobs = torch.tensor([0.0], requires_grad=True)
    loss, kept = dis(logprobs, torch.tensor([-1000.0]), torch.tensor([1.0]), low=0.3, high=5.0)
    torch.autograd.backward(loss.sum())
    assert (loss.tolist(), kept.tolist()) == ([0.0], [False])
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0]
