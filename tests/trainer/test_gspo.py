"""`gspo` against losses and gradients worked out by hand."""

import math

import pytest
import torch

from moonmill.trainer.algorithms.gspo import gspo


def run(log_ratios: list[float], advantages: list[float], lengths: list[int], low: float = 0.2, high: float = 0.25):
    """Losses, gradients with respect to logπ_θ, and mask, for a behaviour log-probability of −1."""
    behaviour = torch.full((len(log_ratios),), -1.0, dtype=torch.float64)
    logprobs = (behaviour + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_()
    given = torch.tensor(advantages, dtype=torch.float64)
    loss, kept = gspo(logprobs, behaviour, given, lengths, low=low, high=high)
    torch.autograd.backward(loss.sum())
    assert logprobs.grad is not None
    return loss.tolist(), logprobs.grad.tolist(), kept.tolist()


def test_the_ratio_is_the_geometric_mean_of_the_rollouts_tokens():
    # Log-ratios 0.5, −0.3, −0.1: mean 1/30, s = e^(1/30) = 1.0339, in the band though no token's own ratio is.
    # Loss −s·2 each; gradient of each token −s·2.
    s = math.exp(0.1 / 3)
    loss, grad, kept = run([0.5, -0.3, -0.1], [2.0] * 3, [3])
    assert loss == pytest.approx([-2 * s] * 3)
    assert grad == pytest.approx([-2 * s] * 3)
    assert kept == [True] * 3


def test_averaged_over_a_rollout_its_gradient_is_that_of_the_papers_loss():
    # −s·Â with s = exp(mean(logπ_θ − logπ_old)): d/dlogπ_t = −s·Â/l.
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([-1.1, -1.95], dtype=torch.float64)
    torch.autograd.backward(-3.0 * (logprobs - behaviour).mean().exp())
    assert logprobs.grad is not None
    _, grad, _ = run([0.1, -0.05], [3.0] * 2, [2])
    assert [g / 2 for g in grad] == pytest.approx(logprobs.grad.tolist())


def test_a_rollout_is_clipped_as_a_whole_and_no_other():
    # First rollout: mean 0.3, s = 1.35 > 1.25 with a good advantage. Second: mean 0, kept.
    loss, grad, kept = run([0.6, 0.0, 0.4, -0.4], [2.0, 2.0, 1.0, 1.0], [2, 2])
    assert loss == pytest.approx([-2.5, -2.5, -1.0, -1.0])
    assert grad == pytest.approx([0.0, 0.0, -1.0, -1.0])
    assert kept == [False, False, True, True]


def test_a_bad_rollout_is_clipped_below_the_band_and_kept_above_it():
    s = math.exp(0.5)
    _, grad, kept = run([-0.5, 0.5], [-1.0, -1.0], [1, 1])
    assert grad == pytest.approx([0.0, s])
    assert kept == [False, True]


def test_tokens_may_have_advantages_of_their_own():
    # Mean 0.3, s = 1.35: the good token is clipped, the bad one is not.
    _, grad, kept = run([0.4, 0.2], [1.0, -1.0], [2])
    assert grad == pytest.approx([0.0, math.exp(0.3)])
    assert kept == [False, True]
