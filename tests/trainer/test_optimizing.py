"""The learning rate's course, by hand."""

import pytest
import torch
from torch import nn

from moonmill.config import LearnerConfig
from moonmill.trainer.optimizing import Course, Optimizer


def test_constant_after_a_rise():
    course = Course("constant", warmup=4)
    assert [course.at(u, u) for u in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_a_straight_line_to_zero_after_the_rise():
    course = Course("linear", warmup=2, falls_from=2, falls_to=6)
    assert [course.at(u, u) for u in range(7)] == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25, 0])


def test_half_a_cosine_to_zero():
    course = Course("cosine", falls_from=0, falls_to=4)
    # (1 + cos(π/4))/2 = 0.8536, (1 + cos(π/2))/2 = 0.5, (1 + cos(3π/4))/2 = 0.1464
    assert [course.at(u, u) for u in range(5)] == pytest.approx([1, 0.853553, 0.5, 0.146447, 0], abs=1e-6)


def test_it_falls_with_the_policys_versions_whatever_the_optimizers_own_updates():
    course = Course("linear", falls_to=10)
    assert course.at(200, 0) == 1
    assert course.at(201, 5) == 0.5


def test_a_run_that_goes_on_beyond_its_end_learns_no_more_and_not_backwards():
    assert Course("linear", falls_to=4).at(9, 9) == 0
    assert Course("cosine", falls_to=4).at(9, 9) == 0


def test_it_is_what_the_update_is_made_with():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = Optimizer([parameter], 0.1, LearnerConfig(), Course("linear", warmup=2, falls_to=4))
    steps = []
    for version in range(4):
        before = float(parameter.detach())
        parameter.grad = torch.ones(1)
        assert optimizer.lr(version) == pytest.approx([0.05, 0.075, 0.05, 0.025][version])
        optimizer.update((), version)
        steps.append(before - float(parameter.detach()))
    # Equal gradients make Adam's step its learning rate.
    assert steps == pytest.approx([0.05, 0.075, 0.05, 0.025], rel=1e-4)
