"""An adapter: where it is put, how it begins, that nothing else is trained or written, and who can load it."""

import json
from pathlib import Path

import msgspec
import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma4Config, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from moonmill.agents.engine.models import load_model, load_version
from moonmill.config import LearnerConfig, LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.attention import PACKED
from moonmill.trainer.learner import Learner
from moonmill.trainer.lora import Adapter, target_modules
from moonmill.trainer.models import action_logprobs
from moonmill.types import Sampling
from tests.trainer.conftest import VOCAB, MakeConfig, sampled
from tests.trainer.families import MADE
from tests.trainer.test_architectures import FAMILIES, packed, turns, with_attention

LORA = LoraConfig(r=4, alpha=8)
TOKENS = torch.tensor([[1, 5, 9, 2, 11, 7]])
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


def made(family: str) -> PreTrainedModel:
    torch.manual_seed(11)
    return with_attention(FAMILIES[family][0]().eval(), PACKED)


def trained(learner: Learner, model_path: Path, steps: int = 2) -> Learner:
    for seed in range(steps):
        learner.step(sampled(model_path, seed))
    return learner


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=TOKENS).logits
    return result


# Where it is put


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_by_itself_it_is_put_on_all_projections_of_attention_and_mlp(family: str) -> None:
    model = made(family)
    adapter = Adapter(model, LORA, "owner/base", 0)
    places = {name.partition(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    layers = {f"model.layers.{i}.self_attn.{n}" for i in (0, 1) for n in ATTENTION}
    assert places == layers | {f"model.layers.{i}.mlp.{n}" for i in (0, 1) for n in MLP}
    assert len(adapter.parameters) == 2 * len(places)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_it_begins_as_nothing_and_every_part_of_it_is_reached(family: str) -> None:
    model, batch = made(family), packed(turns())
    with torch.no_grad():
        before, _ = action_logprobs(model, batch, Sampling())
    adapter = Adapter(model, LORA, "owner/base", 0)
    after, _ = action_logprobs(model, batch, Sampling())
    assert torch.equal(before, after)
    with torch.no_grad():
        for parameter in adapter.parameters:
            parameter.add_(0.05)
    torch.autograd.backward(action_logprobs(model, batch, Sampling())[0].sum())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter.parameters)
    assert [name for name, p in model.named_parameters() if p.grad is not None and "lora_" not in name] == []


def test_the_towers_of_a_model_that_also_sees_and_hears_are_left_alone() -> None:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "global_head_dim": 8}
    text = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "hidden_size_per_layer_input": 4}
    tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma4Config(
        text_config={**heads, **text, "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB},
        vision_config={**tower, "intermediate_size": 16, "num_key_value_heads": 1, "head_dim": 8},
        audio_config={**tower, "subsampling_conv_channels": [4, 4], "output_proj_dims": 16},
    )
    model = AutoModelForCausalLM.from_config(config)
    places = target_modules(model, "auto")
    assert {place.rpartition(".layers.")[0] for place in places} == {"model.language_model"}
    assert {place.rpartition(".")[2] for place in places} == {*ATTENTION, *MLP, "per_layer_projection"}
    with pytest.raises(ConfigError, match="has no projection linear; it has q_proj"):
        target_modules(model, ("linear",))


def test_experts_in_fused_parameters_are_refused_by_name_and_attention_alone_is_not() -> None:
    with pytest.raises(ConfigError) as refused:
        target_modules(made("mixtral"), "auto")
    assert str(refused.value) == (
        "model.lora.target_modules: MixtralForCausalLM keeps its experts in fused parameters "
        "(mlp.experts.gate_up_proj, mlp.experts.down_proj), which an adapter cannot be put on: name what it is "
        "to be put on, such as [q_proj, k_proj, v_proj, o_proj], or set model.lora to null to train all weights"
    )
    assert target_modules(made("mixtral"), ("q_proj", "v_proj")) == ["q_proj", "v_proj"]


def test_what_peft_refuses_in_models_with_state_spaces_is_left_out_and_refused_by_name() -> None:
    model = MADE["falcon_h1"]()
    places = target_modules(model, "auto")
    assert {*ATTENTION, "in_proj"} < set(places)
    assert "out_proj" not in places
    with pytest.raises(ConfigError, match="FalconH1ForCausalLM has no projection out_proj; it has "):
        target_modules(model, ("out_proj",))
    Adapter(model, LORA, "owner/base", 0)


def test_the_parameters_of_a_state_space_are_no_experts() -> None:
    adapter = Adapter(MADE["zamba"](), LORA, "owner/base", 0)
    assert any("mamba" in name for name in adapter._tensors())


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "query", "gate", "mlp"])
def test_what_is_no_projection_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        target_modules(made("qwen3"), ("q_proj", name))
    assert str(refused.value) == (
        f"model.lora.target_modules: Qwen3ForCausalLM has no projection {name}; it has q_proj, k_proj, v_proj, o_proj, "
        "gate_proj, up_proj, down_proj"
    )


def test_a_name_that_also_stands_for_something_else_is_told_apart_by_its_place() -> None:
    model = made("llama")
    model.o_proj = torch.nn.Linear(2, 2)
    assert target_modules(model, ("o_proj",)) == [f"model.layers.{i}.self_attn.o_proj" for i in (0, 1)]


def test_projections_that_are_kept_transposed_are_adapted_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, n_positions=32)).eval()
    model.save_pretrained(tmp_path / "base")
    adapter = Adapter(model, LORA, str(tmp_path / "base"), 0)
    with torch.no_grad():
        for parameter in adapter.parameters:
            parameter.normal_(std=0.2)
    (tmp_path / "v1").mkdir()
    adapter.export(tmp_path / "v1", torch.float32)
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "v1").merge_and_unload()
    assert torch.allclose(logits(loaded), logits(model), atol=1e-5)


# How it is trained


def test_the_seed_decides_how_it_begins(make_config: MakeConfig) -> None:
    config = make_config(lora=LORA)
    other = msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, seed=6))
    torch.manual_seed(1)
    one = Learner(config)
    torch.manual_seed(2)
    same, different = Learner(config), Learner(other)
    ours, theirs = (learner._weights.parameters for learner in (one, same))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(ours, different._weights.parameters, strict=True))


def test_training_it_leaves_the_base_and_the_critics_base_alone(make_config: MakeConfig, model_path: Path) -> None:
    learner = Learner(make_config(lora=LORA, learner=LearnerConfig(batch_rollouts=8, lr=1e-2, weight_decay=0.1)))
    assert learner.critic is not None
    before = {n: p.clone() for n, p in learner.policy.named_parameters()}
    critic = {n: p.clone() for n, p in learner.critic.named_parameters()}
    assert not any("lora_" in name for name in critic)
    trained(learner, model_path)
    changed = {n for n, p in learner.policy.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {name for name in before if "lora_" in name}
    assert {n for n, p in learner.critic.named_parameters() if not torch.equal(p, critic[n])} == {
        name for name in critic if ".mlp." in name or name.startswith("head.")
    }


def test_with_bfloat16_the_base_is_kept_in_it_and_the_adapter_is_not(make_config: MakeConfig, model_path: Path) -> None:
    config = make_config(lora=LORA)
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, dtype="bfloat16"))
    learner = Learner(config)
    assert learner.critic is not None
    assert {p.dtype for p in learner.policy.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert {p.dtype for p in (*learner._weights.parameters, *learner.critic.parameters())} == {torch.float32}
    before = [p.clone() for p in learner._weights.parameters]
    metrics = trained(learner, model_path, 1).step(sampled(model_path, 3)).metrics
    assert metrics["grad_norm"] > 0
    assert not any(torch.equal(a, b) for a, b in zip(before[1::2], learner._weights.parameters[1::2], strict=True))


# How it is written


def test_an_export_is_an_adapter_that_the_engine_loads(
    make_config: MakeConfig, model_path: Path, tmp_path: Path
) -> None:
    learner = trained(Learner(make_config(lora=LORA)), model_path)
    folder = tmp_path / "v000002"
    learner.export(folder)
    assert sorted(f.name for f in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    version = load_version(load_model(str(model_path), "float32", "cpu"), folder)
    version.set_attn_implementation("eager")
    assert torch.allclose(logits(version), logits(with_attention(learner.policy, "eager")), atol=1e-5)


def test_an_export_has_the_dtype_of_the_engine(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(lora=LORA)
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, dtype="bfloat16"))
    Learner(config).export(tmp_path / "v000000")
    weights = load_file(tmp_path / "v000000" / "adapter_model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}


def test_an_export_again_takes_the_place_of_the_first(
    make_config: MakeConfig, model_path: Path, tmp_path: Path
) -> None:
    learner = Learner(make_config(lora=LORA))
    learner.export(tmp_path / "v")
    first = load_file(tmp_path / "v" / "adapter_model.safetensors")
    trained(learner, model_path).export(tmp_path / "v")
    second = load_file(tmp_path / "v" / "adapter_model.safetensors")
    assert first.keys() == second.keys()
    assert all(not torch.equal(first[n], second[n]) for n in first if "lora_B" in n)


def test_a_checkpoints_policy_is_an_adapter_that_others_load_from_anywhere(
    make_config: MakeConfig, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.chdir(model_path.parent)
    config = make_config(lora=LORA)
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, path=model_path.name))
    learner = trained(Learner(config), model_path)
    policy = learner.checkpoint(tmp_path) / "policy"
    monkeypatch.chdir(tmp_path)
    assert {f.name for f in policy.iterdir()} == {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}
    description = json.loads((policy / "adapter_config.json").read_text())
    assert description["base_model_name_or_path"] == str(model_path)
    assert (description["r"], description["lora_alpha"], description["lora_dropout"]) == (4, 8, 0.0)
    expected = logits(with_attention(learner.policy, "eager"))
    for loaded in (AutoPeftModelForCausalLM.from_pretrained(policy), AutoModelForCausalLM.from_pretrained(policy)):
        assert torch.allclose(logits(loaded), expected, atol=1e-5)


def test_no_weight_of_the_base_is_in_a_checkpoint(make_config: MakeConfig, model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    learner = trained(Learner(make_config(lora=LORA)), model_path, 1)
    path = learner.checkpoint(tmp_path)
    names = set(load_file(path / "policy" / "adapter_model.safetensors"))
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    saved = torch.load(path / "optimizers.pt", weights_only=True)["policy"]["adam"]["state"]
    assert len(saved) == len(names)


def test_an_adapter_is_not_trained_on(make_config: MakeConfig, model_path: Path, tmp_path: Path) -> None:
    Learner(make_config(lora=LORA)).export(tmp_path / "v000000")
    config = make_config(lora=LORA)
    config = msgspec.structs.replace(
        config, model=msgspec.structs.replace(config.model, path=str(tmp_path / "v000000"))
    )
    with pytest.raises(ConfigError, match="is an adapter, and training begins with a whole model"):
        Learner(config)
