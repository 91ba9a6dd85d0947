"""Gradient checkpointing: the same gradients from less memory, for policy and critic."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from moonmill.algorithm_config import CriticConfig
from moonmill.config import LearnerConfig, LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.attention import PACKED
from moonmill.trainer.critic import WholeCritic
from moonmill.trainer.learner import Learner
from moonmill.trainer.models import action_logprobs
from moonmill.trainer.recompute import recompute_layers
from moonmill.types import Sampling
from tests.trainer.conftest import VOCAB, MakeConfig, action, observation, rollout, sampled
from tests.trainer.test_architectures import FAMILIES, packed, turns, with_attention


def made(family: str, recompute: bool) -> PreTrainedModel:
    torch.manual_seed(11)
    model = with_attention(FAMILIES[family][0]().eval(), PACKED)
    if recompute:
        recompute_layers(model)
    return model


def gradients(module: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    torch.autograd.backward(loss)
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def kept_while(work: Callable[[], object]) -> int:
    """Bytes of the tensors that autograd keeps for the backward pass of `work`, each counted once."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        held = work()
    assert held is not None
    return sum(seen.values())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_policys_gradients_are_the_same_bits(family: str):
    found = []
    for recompute in (False, True):
        model = made(family, recompute)
        logprobs, _ = action_logprobs(model, packed(turns()), Sampling())
        found.append(gradients(model, (logprobs * torch.linspace(-1, 1, len(logprobs))).sum()))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen attention", "full"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_critic_copied_from_it_computes_with_its_own_layers(family: str, freeze: bool):
    found = []
    for recompute in (False, True):
        policy = made(family, recompute)
        critic = WholeCritic(policy, CriticConfig(freeze_attention=freeze))
        torch.nn.init.ones_(critic.head.weight)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.zero_()
        values, ends = critic(packed(turns()))
        found.append(gradients(critic, values.square().sum() + ends.sum()))
        assert all(p.grad is None for p in policy.parameters())
    assert len(found[0]) > 2
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LoraConfig(r=4, alpha=8)], ids=["full", "lora"])
def test_steps_give_the_same_weights(make_config: MakeConfig, model_path: Path, lora: LoraConfig | None, dtype: str):
    learners = []
    for recompute in (False, True):
        config = make_config(lora=lora, learner=LearnerConfig(8, lr=1e-3, gradient_checkpointing=recompute))
        learner = Learner(replace(config, model=replace(config.model, dtype=dtype)))
        for seed in range(2):
            learner.step(sampled(model_path, seed))
        learners.append(learner)
    one, other = (
        {**learner.policy.state_dict(), **learner.critic.state_dict()} for learner in learners if learner.critic
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_far_less_is_kept_for_the_backward_pass():
    """Of eight layers each keeps no more than what went into it."""
    shape = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 8}
    batch = packed([rollout(observation(1, 2), action(*([3] * 200))) for _ in range(4)])
    kept = []
    for recompute in (False, True):
        torch.manual_seed(0)
        config = LlamaConfig(**shape, num_attention_heads=4, max_position_embeddings=256)
        model = with_attention(LlamaForCausalLM(config).eval(), PACKED)
        if recompute:
            recompute_layers(model)
        kept.append(kept_while(lambda model=model: action_logprobs(model, batch, Sampling())))
    assert kept[1] < kept[0] / 8


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ConfigError, match=r"learner\.gradient_checkpointing: Linear has no layers"):
        recompute_layers(nn.Linear(1, 1))  # type: ignore[arg-type]
