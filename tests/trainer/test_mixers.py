"""Layers that mix tokens otherwise than attention, over rollouts that lie end to end: tiny models made at random."""

import copy

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from moonmill.algorithm_config import CriticConfig
from moonmill.trainer.attention import PACKED, refuse_mixing
from moonmill.trainer.critic import WholeCritic
from moonmill.trainer.mixers import run_by_rollout
from moonmill.trainer.models import action_logprobs
from moonmill.trainer.recompute import recompute_layers
from moonmill.types import Rollout, Sampling
from tests.trainer.families import MADE
from tests.trainer.test_architectures import packed, turns

HYBRIDS = [
    "qwen3_next",
    "qwen3_5_text",
    "falcon_h1",
    "granitemoehybrid",
    "nemotron_h",
    "lfm2",
    "minimax",
    "zamba",
]
SIZES = (1, 2, 3, 7, 15, 17)
"""A quarter of the rollouts' lengths: shorter than a convolution, and longer than a chunk of linear attention."""


@pytest.fixture(params=HYBRIDS)
def policy(request: pytest.FixtureRequest) -> PreTrainedModel:
    return by_rollout(request.param)


def by_rollout(name: str) -> PreTrainedModel:
    torch.manual_seed(11)
    model: PreTrainedModel = MADE[name]().eval()
    model.set_attn_implementation(PACKED)
    run_by_rollout(model)
    return model


def alone(policy: PreTrainedModel, rollouts: list[Rollout]) -> Tensor:
    """Log-probabilities of what was sampled, from a forward pass for each rollout."""
    found = []
    for r in rollouts:
        tokens = torch.tensor([[t for s in r.segments for t in s.tokens]])
        logprobs = policy(input_ids=tokens, use_cache=False).logits[0].log_softmax(-1)
        size = len(r.actions[0].tokens)
        at = torch.tensor([*range(size, 2 * size), *range(3 * size, 4 * size)])
        found.append(logprobs[at].gather(-1, tokens[0, at + 1].unsqueeze(-1)).squeeze(-1))
    return torch.cat(found)


def gradients(policy: PreTrainedModel, loss: Tensor) -> dict[str, Tensor]:
    policy.zero_grad()
    torch.autograd.backward(loss)
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert float((ours[name] - gradient).abs().max()) <= 1e-4 * float(gradient.abs().max()) + 1e-7, name


def test_packed_log_probabilities_and_gradients_are_those_of_each_rollout_alone(policy: PreTrainedModel):
    batch = packed(turns(SIZES))
    together, _ = action_logprobs(policy, batch, Sampling())
    weights = torch.linspace(-1, 1, len(together))
    ours = gradients(policy, (together * weights).sum())
    policy.set_attn_implementation("eager")
    rollouts = turns(SIZES)
    one_by_one = alone(policy, [rollouts[i] for i in batch.batch.rollouts])
    assert float((together - one_by_one).abs().max()) < 3e-5
    assert_same(ours, gradients(policy, (one_by_one * weights).sum()))


def test_rollouts_do_not_see_each_other(policy: PreTrainedModel):
    refuse_mixing(policy)


def test_rollouts_do_not_see_each_other_in_a_model_that_takes_seconds_for_what_others_do_in_an_instant():
    refuse_mixing(by_rollout("kimi_linear"))


def test_a_copy_runs_by_rollout_as_well(policy: PreTrainedModel):
    batch = packed(turns(SIZES))
    with torch.no_grad():
        own, _ = action_logprobs(policy, batch, Sampling())
        copied, _ = action_logprobs(copy.deepcopy(policy), batch, Sampling())
    assert torch.equal(own, copied)


def test_a_critic_on_a_copy_values_each_rollout_by_itself(policy: PreTrainedModel):
    critic = WholeCritic(policy, CriticConfig())
    torch.nn.init.normal_(critic.head.weight, std=0.1)
    rollouts = turns(SIZES)
    with torch.no_grad():
        batch = packed(rollouts)
        together, _ = critic(batch)
        each = [critic(packed([rollouts[i]]))[0] for i in batch.batch.rollouts]
    assert float((together - torch.cat(each)).abs().max()) < 3e-5


def test_gradient_checkpointing_changes_no_gradient(policy: PreTrainedModel):
    batch = packed(turns(SIZES))
    plain = gradients(policy, action_logprobs(policy, batch, Sampling())[0].sum())
    recompute_layers(policy)
    again = gradients(policy, action_logprobs(policy, batch, Sampling())[0].sum())
    assert all(torch.equal(again[name], gradient) for name, gradient in plain.items())


def test_a_mixer_is_called_the_same_class_as_before_and_saved_as_before(policy: PreTrainedModel):
    torch.manual_seed(11)
    fresh: PreTrainedModel = MADE[policy.config.model_type]()
    assert [type(m).__name__ for m in policy.modules()] == [type(m).__name__ for m in fresh.modules()]
    assert policy.state_dict().keys() == fresh.state_dict().keys()
