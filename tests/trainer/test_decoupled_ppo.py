"""`decoupled_ppo` and its interpolated proximal policy against numbers worked out by hand."""

import math

import pytest
import torch

from moonmill.trainer.algorithms.decoupled_ppo import decoupled_ppo, interpolated_proximal


def run(to_proximal: list[float], to_rollout: list[float], advantages: list[float]):
    """Losses, gradients and mask, from the ratios π_θ/π_prox and π_prox/π_rollout."""
    behaviour = torch.full((len(to_proximal),), -3.0, dtype=torch.float64)
    proximal = behaviour + torch.tensor(to_rollout, dtype=torch.float64).log()
    logprobs = (proximal + torch.tensor(to_proximal, dtype=torch.float64).log()).requires_grad_()
    given = torch.tensor(advantages, dtype=torch.float64)
    loss, kept = decoupled_ppo(logprobs, behaviour, given, proximal, low=0.2, high=0.25)
    torch.autograd.backward(loss.sum())
    assert logprobs.grad is not None
    return loss.tolist(), logprobs.grad.tolist(), kept.tolist()


def test_inside_the_band_the_gradient_is_weighted_with_the_whole_ratio():
    # u = 1.1, w = 2: loss −2·1.1·3, gradient the same; π_θ/π_rollout = 2.2.
    loss, grad, kept = run([1.1], [2.0], [3.0])
    assert (loss, grad, kept) == ([pytest.approx(-6.6)], [pytest.approx(-6.6)], [True])


def test_the_clip_is_around_the_proximal_policy_and_what_it_leaves_is_weighted():
    # u = 1.5 and a good token: −4·1.25·1. u = 0.5 and a bad one: −4·0.8·(−1).
    loss, grad, kept = run([1.5, 0.5], [4.0, 4.0], [1.0, -1.0])
    assert loss == pytest.approx([-5.0, 3.2])
    assert grad == [0.0, 0.0]
    assert kept == [False, False]


def test_a_token_far_from_the_rollout_policy_is_not_clipped_for_that():
    # PPO would clip a ratio of 8; here the updates of this batch have done nothing yet.
    assert run([1.0], [8.0], [1.0])[1] == pytest.approx([-8.0])


def test_the_interpolated_policy_lies_between_the_two_by_the_versions():
    # v = 7. Of version 3: α = (6 − 3)/(7 − 3) = 3/4; of 5: 1/2; of 6 and 7: 0.
    behaviour = torch.full((4,), -2.0, dtype=torch.float64)
    logprobs = torch.full((4,), -1.0, dtype=torch.float64, requires_grad=True)
    found = interpolated_proximal(logprobs, behaviour, torch.tensor([3, 5, 6, 7]), 7)
    assert found.tolist() == pytest.approx([-1.25, -1.5, -2.0, -2.0])
    assert not found.requires_grad


def test_with_the_rollout_policy_as_the_proximal_one_it_is_ppo():
    loss, grad, _ = run([1.1, 1.3], [1.0, 1.0], [2.0, 2.0])
    assert loss == pytest.approx([-2.2, -2.5])
    assert grad == pytest.approx([-2.2, 0.0])


def test_the_weight_is_not_differentiated():
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([-2.0], dtype=torch.float64)
    proximal = interpolated_proximal(logprobs, behaviour, torch.tensor([0]), 2)
    loss, _ = decoupled_ppo(logprobs, behaviour, torch.tensor([1.0]), proximal, low=0.9, high=9.0)
    torch.autograd.backward(loss.sum())
    assert logprobs.grad is not None
    # w·u = e^0.5·e^0.5; were w differentiated as well, it would be half as much again.
    assert logprobs.grad.tolist() == pytest.approx([-math.e])
