"""`ppo_clip` against losses and gradients worked out by hand."""

import pytest
import torch

from moonmill.trainer.algorithms.ppo_clip import ppo_clip


def run(ratios: list[float], advantages: list[float], dual: float | None = None):
    behaviour = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    logprobs = (behaviour + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    given = torch.tensor(advantages, dtype=torch.float64)
    loss, kept = ppo_clip(logprobs, behaviour, given, low=0.2, high=0.25, dual=dual)
    torch.autograd.backward(loss.sum())
    assert logprobs.grad is not None
    return loss.tolist(), logprobs.grad.tolist(), kept.tolist()


def test_inside_the_band_it_is_the_importance_weighted_policy_gradient():
    # loss −r·Â, gradient with respect to logπ −r·Â.
    loss, grad, kept = run([1.0, 1.1, 0.9], [2.0, 2.0, -2.0])
    assert loss == pytest.approx([-2.0, -2.2, 1.8])
    assert grad == pytest.approx([-2.0, -2.2, 1.8])
    assert kept == [True] * 3


def test_a_good_token_above_the_band_is_clipped():
    loss, grad, kept = run([1.5], [2.0])
    assert (loss, grad, kept) == ([pytest.approx(-2.5)], [0.0], [False])


def test_a_bad_token_below_the_band_is_clipped():
    # −min(0.5·(−2), 0.8·(−2)) = 1.6.
    loss, grad, kept = run([0.5], [-2.0])
    assert (loss, grad, kept) == ([pytest.approx(1.6)], [0.0], [False])


def test_a_token_that_moved_the_wrong_way_keeps_its_gradient():
    # A good token that has become rarer, a bad one that has become likelier: −r·Â each.
    loss, grad, kept = run([0.5, 1.5], [2.0, -2.0])
    assert loss == pytest.approx([-1.0, 3.0])
    assert grad == pytest.approx([-1.0, 3.0])
    assert kept == [True, True]


def test_the_band_may_be_wider_above_than_below():
    # Clip-higher: 1.25 is kept in a band that ends at 1.28.
    behaviour = torch.full((2,), -1.0, dtype=torch.float64)
    logprobs = behaviour + torch.tensor([1.25, 1.3], dtype=torch.float64).log()
    loss, kept = ppo_clip(logprobs, behaviour, torch.ones(2, dtype=torch.float64), low=0.2, high=0.28)
    assert loss.tolist() == pytest.approx([-1.25, -1.28])
    assert kept.tolist() == [True, False]


def test_a_dual_clip_bounds_what_a_bad_token_can_cost():
    # c = 3: a ratio of 2 is kept, one of 5 clipped to −3·(−2); a good token is not concerned.
    loss, grad, kept = run([2.0, 5.0, 0.5], [-2.0, -2.0, 1.0], dual=3.0)
    assert loss == pytest.approx([4.0, 6.0, -0.5])
    assert grad == pytest.approx([4.0, 0.0, -0.5])
    assert kept == [True, False, True]


@pytest.mark.parametrize(("advantage", "dual"), [(1.0, None), (-1.0, 3.0)])
def test_a_ratio_that_overflows_is_clipped_without_a_gradient(advantage: float, dual: float | None):
    logprobs = torch.tensor([0.0], requires_grad=True)
    loss, kept = ppo_clip(logprobs, torch.tensor([-1000.0]), torch.tensor([advantage]), low=0.2, high=0.2, dual=dual)
    torch.autograd.backward(loss.sum())
    assert logprobs.grad is not None
    assert (logprobs.grad.tolist(), kept.tolist()) == ([0.0], [False])
