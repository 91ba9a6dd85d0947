"""What holds the learner's model: quantized bases, and two adapters on one base."""

from pathlib import Path

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from msgspec.structs import replace
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.algorithm_config import CriticConfig, CriticLoraConfig
from moonmill.config import Config, LearnerConfig, LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.critic import places_of
from moonmill.trainer.learner import Learner
from moonmill.trainer.lora import Adapter, SideAdapter
from moonmill.trainer.models import action_logprobs, load_policy
from moonmill.trainer.position_wise import backbone_of
from moonmill.trainer.trying import refuse_wrong_gradients
from moonmill.types import Sampling
from tests.trainer.conftest import MakeConfig, sampled
from tests.trainer.test_architectures import packed, turns

LORA = LoraConfig(r=4, alpha=8)
SIDE = CriticLoraConfig(r=2, alpha=4)
CRITIC = CriticConfig(lr=1e-2, warmup_steps=0, lora=SIDE)
on_quantized_bases = pytest.mark.parametrize("bits", ["4bit", "8bit"])


def quantized(make_config: MakeConfig, bits: str | None, dtype: str = "float32") -> Config:
    config = make_config(lora=LORA, critic=CRITIC, learner=LearnerConfig(batch_rollouts=8, lr=1e-2, quantization=bits))
    return replace(config, model=replace(config.model, dtype=dtype))


def base_of(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that is no adapter's, its scales among them."""
    return {name: t.clone() for name, t in model.state_dict().items() if ".lora_" not in name}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@on_quantized_bases
def test_steps_train_both_adapters_and_leave_every_bit_of_a_quantized_base(
    bits: str, make_config: MakeConfig, model_path: Path, tmp_path: Path
) -> None:
    learner = Learner(quantized(make_config, bits))
    kinds = {type(m).__name__ for m in learner.policy.modules()}
    assert ("Linear4bit" if bits == "4bit" else "Linear8bitLt") in kinds
    before = base_of(learner.policy)
    assert any(not t.is_floating_point() for t in before.values())
    learner.step(sampled(model_path, 0))
    (tmp_path / "checkpoints").mkdir()
    saved = learner.checkpoint(tmp_path)
    assert same(base_of(learner.policy), before)
    trained = [p.clone() for p in learner._weights.parameters]
    metrics = learner.step(sampled(model_path, 1)).metrics
    assert metrics["grad_norm"] > 0
    assert metrics["critic_grad_norm"] > 0
    assert not any(torch.equal(a, b) for a, b in zip(trained, learner._weights.parameters, strict=True))
    # Back, and the same step again: the same bits.
    again = Learner(quantized(make_config, bits))
    again.restore(saved)
    assert all(torch.equal(a, b) for a, b in zip(trained, again._weights.parameters, strict=True))
    again.step(sampled(model_path, 1))
    pairs = zip(learner._weights.parameters, again._weights.parameters, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    learner.export(tmp_path / "v2")
    assert sorted(p.name for p in (tmp_path / "v2").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    exported = load_file(tmp_path / "v2" / "adapter_model.safetensors")
    assert all(".lora_" in name for name in exported)


def test_in_bfloat16_a_quantized_base_is_multiplied_in_it(make_config: MakeConfig, model_path: Path) -> None:
    learner = Learner(quantized(make_config, "4bit", "bfloat16"))
    assert {p.dtype for p in learner.policy.parameters() if not p.requires_grad} >= {torch.uint8, torch.bfloat16}
    assert {p.dtype for p in learner._weights.parameters} == {torch.float32}
    assert learner.step(sampled(model_path, 0)).metrics["grad_norm"] > 0


def test_gradients_on_a_base_in_4_bits_are_those_on_its_dequantized_weights(make_config: MakeConfig) -> None:
    small = load_policy(quantized(make_config, "4bit"))
    wide = load_policy(quantized(make_config, None))
    with torch.no_grad():
        for path, module in small.named_modules():
            if isinstance(module, Linear4bit):
                weight = dequantize_4bit(module.weight.data, module.weight.quant_state)
                assert not torch.equal(wide.get_submodule(path).weight, weight)
                wide.get_submodule(path).weight.copy_(weight)
    found = [policy_gradient(model, started(Adapter(model, LORA, "o/b", 3))) for model in (small, wide)]
    assert float((found[0] - found[1]).norm()) < 1e-4 * float(found[1].norm())


def started(adapter: Adapter | SideAdapter) -> list[nn.Parameter]:
    """An adapter's parameters, none of which is nothing: those of B as well as those of A."""
    parameters = adapter.parameters if isinstance(adapter, Adapter) else [*adapter.parameters.values()]
    draw = torch.Generator().manual_seed(len(parameters))
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
    return parameters


def policy_gradient(model: PreTrainedModel, parameters: list[nn.Parameter]) -> Tensor:
    score = action_logprobs(model, packed(turns()), Sampling())[0].sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(score, parameters)])


def critic_gradient(side: SideAdapter, parameters: list[nn.Parameter]) -> Tensor:
    with side.active():
        hidden = side.backbone(**packed(turns()).inputs).last_hidden_state
        score = (hidden * torch.arange(hidden.shape[-1]).cos()).sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(score, parameters)])


@pytest.mark.parametrize("bits", [None, "4bit", "8bit"])
def test_two_adapters_on_one_base_are_two_models(bits: str | None, make_config: MakeConfig) -> None:
    config = quantized(make_config, bits)
    both, policy, critic = (load_policy(config) for _ in range(3))
    places = places_of(both, CRITIC)
    adapter = Adapter(both, LORA, "o/b", 3)
    side = adapter.beside(places, SIDE, 4)
    alone = started(Adapter(policy, LORA, "o/b", 3))
    aside = SideAdapter(backbone_of(critic), places_of(backbone_of(critic), CRITIC), SIDE, 4)
    own, others = started(adapter), started(side)
    expected = policy_gradient(policy, alone), critic_gradient(aside, started(aside))
    base = base_of(both)

    def step(parameters: list[nn.Parameter], gradient: Tensor) -> None:
        with torch.no_grad():
            sizes = [p.numel() for p in parameters]
            for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
                parameter -= 0.1 * part.view_as(parameter)

    # Gradients of each are to the bit what they are where it is alone, whatever the other has been trained to.
    assert torch.equal(policy_gradient(both, own), expected[0])
    assert torch.equal(critic_gradient(side, others), expected[1])
    kept = [p.clone() for p in others]
    step(own, expected[0])
    assert all(torch.equal(a, b) for a, b in zip(kept, others, strict=True))
    assert torch.equal(critic_gradient(side, others), expected[1])
    kept = [p.clone() for p in own]
    step(others, expected[1])
    assert all(torch.equal(a, b) for a, b in zip(kept, own, strict=True))
    step(alone, expected[0])
    assert torch.equal(policy_gradient(both, own), policy_gradient(policy, alone))
    assert same(base_of(both), base)
    # Each gets gradients while it is in use, and only then.
    assert all(p.requires_grad for p in own)


def test_gradients_that_are_lost_or_mixed_up_are_refused(make_config: MakeConfig) -> None:
    config = make_config(lora=LORA)
    model = load_policy(config)
    parameters = Adapter(model, LORA, "o/b", 3).parameters
    refuse_wrong_gradients(model, backbone_of(model), parameters, config.model)
    projection = model.model.layers[0].self_attn.v_proj
    good = projection.forward
    for bad in (
        lambda x: good(x.cumsum(1)),  # sees the others in its row
        lambda x: good(x) * (x.shape[1] % 2),  # as a kernel that fails at some sizes
    ):
        projection.forward = bad
        with pytest.raises(ConfigError, match=r"learner.backend: the gradients of an adapter in LlamaForCausalLM are"):
            refuse_wrong_gradients(model, backbone_of(model), parameters, config.model)
    unused = [nn.Parameter(torch.zeros(3))]
    with pytest.raises(ConfigError, match="not what they should be"):
        refuse_wrong_gradients(model, backbone_of(model), unused, config.model)
