"""The guard: an update with numbers that are not finite is left out, told and counted, and in the end stops the run."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from moonmill.algorithm_config import AlgorithmConfig, DisConfig, GroupZscoreConfig
from moonmill.config import LearnerConfig, LoraConfig
from moonmill.trainer.learner import Learner
from moonmill.trainer.optimizing import Course, Optimizer
from moonmill.types import Action, Rollout
from tests.trainer.conftest import MakeConfig, sampled
from tests.trainer.test_learner import difference, of_all_weights_or_an_adapter, weights

GRPO = AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=4))


def broken(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The same rollouts, one with a reward that poisons all gradients."""
    return [msgspec.structs.replace(rollouts[0], reward=float("nan")), *rollouts[1:]]


def with_a_bad_logprob(rollouts: Sequence[Rollout], at: int, logprob: float) -> list[Rollout]:
    """The same rollouts, one with an action token of this log-probability."""
    first, *others = rollouts[at].segments
    acted = next(s for s in others if isinstance(s, Action))
    changed = Action(acted.tokens, (logprob, *acted.logprobs[1:]), acted.versions)
    segments = (first, *(changed if s is acted else s for s in others))
    return [msgspec.structs.replace(r, segments=segments) if i == at else r for i, r in enumerate(rollouts)]


@of_all_weights_or_an_adapter
def test_gradients_that_are_not_finite_are_left_out_and_counted(
    make_config: MakeConfig, model_path: Path, lora: LoraConfig | None
):
    learner = Learner(make_config(lora=lora))
    start = weights(learner)
    assert learner.critic is not None
    head = learner.critic.head.weight.clone()
    done = learner.step(broken(sampled(model_path, 0)))
    assert (done.step, done.version, done.updated) == (1, 0, False)
    assert done.metrics["skipped_updates"] == 1
    assert done.metrics["skipped_critic_updates"] == 2
    assert torch.equal(learner.critic.head.weight, head)
    assert difference(weights(learner), start) == 0
    assert done.notice == (
        "learner step 1: loss or gradients of the critic and policy were not finite, and the update was left out"
    )


def test_a_loss_that_is_not_finite_is_enough():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = Optimizer([parameter], 0.1, LearnerConfig(), Course("constant"))
    for loss, expected in ((float("inf"), False), (float("nan"), False), (1.0, True)):
        parameter.grad = torch.ones(2)
        assert optimizer.update([torch.ones(3), torch.tensor([loss])], 0)[1] is expected
        assert parameter.grad is None
        assert torch.equal(parameter, torch.ones(2)) is not expected
    assert optimizer.updates == 1


def test_rollouts_with_log_probabilities_that_are_not_finite_are_named(make_config: MakeConfig, model_path: Path):
    logprob = float("nan")
    learner = Learner(make_config(algorithm=GRPO, learner=LearnerConfig(batch_rollouts=8, micro_batch_tokens=60)))
    rollouts = [msgspec.structs.replace(r, id=f"episode-{r.id}") for r in sampled(model_path, 0, group_size=4)]
    done = learner.step(with_a_bad_logprob(with_a_bad_logprob(rollouts, 6, logprob), 2, logprob))
    assert not done.updated
    assert done.notice == (
        "learner step 1: loss or gradients of the policy were not finite, and the update was left out; not finite are "
        "the log-probabilities of rollouts episode-2, episode-6"
    )
    assert learner.step(rollouts).notice == ""


def test_a_rollout_that_several_updates_were_left_out_for_is_named_once(make_config: MakeConfig, model_path: Path):
    config = make_config(algorithm=msgspec.structs.replace(GRPO, updates=3), learner=LearnerConfig(batch_rollouts=8))
    done = Learner(config).step(with_a_bad_logprob(sampled(model_path, 0, group_size=4), 2, float("nan")))
    assert done.metrics["skipped_updates"] == 3
    assert done.notice.endswith("not finite are the log-probabilities of rollout 2")


@pytest.mark.parametrize("objective", [None, DisConfig()])
def test_a_token_that_was_sampled_with_probability_0_has_no_gradient(
    make_config: MakeConfig, model_path: Path, objective: DisConfig | None
):
    algorithm = AlgorithmConfig("grpo", objective=objective)
    learner = Learner(make_config(algorithm=algorithm, learner=LearnerConfig(batch_rollouts=8)))
    done = learner.step(with_a_bad_logprob(sampled(model_path, 0, group_size=8), 2, float("-inf")))
    assert (done.updated, done.notice) == (True, "")
    assert all(p.isfinite().all() for p in learner.policy.parameters())
