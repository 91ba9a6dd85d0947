"""The critic: where it starts, what of it is trained, and how its health is measured."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from moonmill.algorithm_config import CriticConfig
from moonmill.errors import ConfigError
from moonmill.trainer.attention import PACKED
from moonmill.trainer.critic import Critic, explained_variance
from moonmill.trainer.learner import Learner
from moonmill.trainer.models import Packed, load_policy
from moonmill.trainer.packing import pack
from tests.trainer.conftest import MakeConfig, action, observation, rollout, sampled


@pytest.fixture
def policy(make_config: MakeConfig):
    return load_policy(make_config().model)


def batch_of(model_path: Path) -> Packed:
    (micro,) = pack(sampled(model_path, 0, 4), 10_000)
    return Packed(micro, PACKED, torch.device("cpu"))


def test_an_untrained_critic_says_zero(policy, model_path: Path):
    values, ends = Critic(policy, CriticConfig())(batch_of(model_path))
    assert values.abs().max() == 0
    assert ends.tolist() == [0, 0, 0, 0]


def test_only_mlps_and_the_head_are_trained(policy):
    critic = Critic(policy, CriticConfig())
    trained = {name for name, p in critic.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in critic.named_parameters() if ".mlp." in name or name.startswith("head.")}
    assert len(trained) == 2 * 3 + 2
    assert len(critic.trained()) == len(trained)


def test_with_attention_unfrozen_everything_is_trained(policy):
    assert all(p.requires_grad for p in Critic(policy, CriticConfig(freeze_attention=False)).parameters())


def test_a_model_without_a_recognisable_mlp_is_refused(policy):
    for layer in policy.base_model.layers:
        del layer._modules["mlp"]
    with pytest.raises(ConfigError, match="freeze_attention"):
        Critic(policy, CriticConfig())


def test_training_it_leaves_the_policy_and_its_own_attention_alone(make_config: MakeConfig, model_path: Path):
    learner = Learner(make_config(critic=CriticConfig(lr=1e-2, warmup_steps=5)))
    assert learner.critic is not None
    before = {n: p.clone() for n, p in learner.critic.named_parameters()}
    policy = {n: p.clone() for n, p in learner.policy.named_parameters()}
    learner.step(sampled(model_path, 0))
    after = dict(learner.critic.named_parameters())
    changed = {n for n, p in after.items() if not torch.equal(p, before[n])}
    assert changed == {n for n, p in after.items() if p.requires_grad}
    assert all(torch.equal(p, policy[n]) for n, p in learner.policy.named_parameters())


def test_it_sees_the_context_before_the_token_and_not_the_token(policy):
    critic = Critic(policy, CriticConfig())
    nn.init.normal_(critic.head.weight)

    def value(last: int) -> float:
        (micro,) = pack([rollout(observation(1, 2), action(3, last))], 100)
        values, _ = critic(Packed(micro, PACKED, torch.device("cpu")))
        return float(values[-1].detach())

    assert value(4) == value(9)


def test_explained_variance_by_hand():
    # Targets 0, 1, 2, 3 have a variance of 1.25; the errors −1, 0, 0, 1 one of 0.5.
    assert explained_variance(torch.tensor([1.0, 1.0, 2.0, 2.0]), torch.arange(4.0)) == pytest.approx(1 - 0.5 / 1.25)


def test_a_constant_critic_explains_nothing_and_a_constant_target_cannot_be_explained():
    assert explained_variance(torch.ones(4), torch.arange(4.0)) == 0
    assert math.isnan(explained_variance(torch.arange(4.0), torch.ones(4)))


def test_it_learns_to_predict_returns(make_config: MakeConfig, model_path: Path):
    learner = Learner(make_config(critic=CriticConfig(lr=3e-3, updates=4, warmup_steps=100)))
    rollouts = sampled(model_path, 2)
    first = learner.step(rollouts).metrics
    for _ in range(20):
        last = learner.step(rollouts).metrics
    assert first["explained_variance"] == pytest.approx(0)
    assert last["explained_variance"] > 0.8
    assert last["value_loss"] < first["value_loss"] / 4
    assert abs(last["value_bias"]) < abs(first["value_bias"])
