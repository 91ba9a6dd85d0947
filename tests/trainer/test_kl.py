"""The KL penalty against values and gradients worked out by hand, and against the true divergence."""

import math

import pytest
import torch

from moonmill.trainer.algorithms.kl import kl_penalty

EACH = pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])


def run(difference: float, estimator) -> tuple[float, float]:
    """Value and gradient with respect to logπ_θ, where d = logπ_θ − logπ_ref is given."""
    logprobs = torch.tensor([-1.0 + difference], dtype=torch.float64, requires_grad=True)
    penalty = kl_penalty(logprobs, torch.tensor([-1.0], dtype=torch.float64), estimator)
    torch.autograd.backward(penalty.sum())
    assert logprobs.grad is not None
    return float(penalty.detach()), float(logprobs.grad)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        # d = 0.5: k1 = 0.5; k2 = 0.125, gradient d; k3 = e^−0.5 − 1 + 0.5, gradient 1 − e^−0.5.
        ("k1", 0.5, 0.5),
        ("k2", 0.125, 0.5),
        ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
    ],
)
def test_value_and_gradient_of_each_estimator(estimator, value, gradient):
    assert run(0.5, estimator) == (pytest.approx(value), pytest.approx(gradient))


@EACH
@pytest.mark.parametrize("difference", [-1e4, -100.0, -30.0, 30.0, 1e4])
def test_policies_that_are_far_apart_overflow_nothing_and_are_pushed_no_further(estimator, difference):
    value, gradient = run(difference, estimator)
    assert 0 <= abs(value) < 1e9
    assert gradient * difference >= 0
    assert abs(gradient) <= 1e4


@EACH
def test_where_the_policies_agree_there_is_no_penalty_and_no_pull(estimator):
    assert run(0.0, estimator) == (0.0, 0.0)


@EACH
def test_it_pulls_back_whichever_way_a_token_has_gone(estimator):
    assert run(0.1, estimator)[1] > 0 > run(-0.1, estimator)[1]


@pytest.mark.parametrize(("estimator", "off"), [("k1", 1e-9), ("k3", 1e-9), ("k2", 0.01)])
def test_averaged_over_the_policy_it_is_the_divergence(estimator, off):
    policy = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    reference = torch.tensor([0.25, 0.4, 0.35], dtype=torch.float64)
    true = float((policy * (policy / reference).log()).sum())
    mean = float((policy * kl_penalty(policy.log(), reference.log(), estimator)).sum())
    assert mean == pytest.approx(true, abs=off)


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_averaged_over_the_policy_the_gradient_is_that_of_the_divergence(estimator):
    """Over all tokens, each weighted with its probability: the score-function gradient of a sample, on average."""
    logits = torch.tensor([0.1, 0.9, -0.3], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.25, 0.4, 0.35], dtype=torch.float64).log()
    logprobs = logits.log_softmax(-1)
    (true,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)
    penalty = kl_penalty(logprobs, reference, estimator)
    (sampled,) = torch.autograd.grad((logprobs.detach().exp() * penalty).sum(), logits)
    assert sampled.tolist() == pytest.approx(true.tolist())
