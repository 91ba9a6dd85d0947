"""Loading models, and versions of their weights."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from moonmill.agents.engine import folder as folders
from moonmill.agents.engine.attention import Chunk, KVCache, StepPlan
from moonmill.agents.engine.models import ModelError, forward, load_model, load_version

TOKENS = torch.tensor([[5, 9, 2, 40, 41, 7]])


@pytest.fixture
def base(model_dir: Path) -> PreTrainedModel:
    return load_model(str(model_dir), "float32", "cpu")


def logits_of(model: PreTrainedModel) -> Tensor:
    cache = KVCache(slots=1, max_length=16)
    with torch.inference_mode():
        return forward(model, TOKENS, StepPlan([Chunk(0, 0, 6)], cache, model.device))


def adapter(model_dir: Path, folder: Path, **how: object) -> Tensor:
    """Make a PEFT adapter that changes something; returns what the adapted model computes."""
    torch.manual_seed(0)
    plain = LlamaForCausalLM.from_pretrained(model_dir)
    model = get_peft_model(plain, LoraConfig(r=4, lora_alpha=8, **how))  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    with torch.inference_mode():
        return model.eval()(input_ids=TOKENS).logits[0]


def storages(model: PreTrainedModel) -> dict[str, int]:
    return {name: p.data_ptr() for name, p in model.named_parameters()}


def test_a_lora_adapter_computes_what_peft_does(base: PreTrainedModel, model_dir: Path, tmp_path: Path) -> None:
    expected = adapter(model_dir, tmp_path, target_modules=["q_proj", "down_proj"])
    before = logits_of(base)
    version = load_version(base, tmp_path)
    assert torch.allclose(logits_of(version), expected, atol=1e-4)
    assert torch.equal(logits_of(base), before), "the base is untouched"


def test_a_lora_adapter_shares_what_it_does_not_change(base: PreTrainedModel, model_dir: Path, tmp_path: Path) -> None:
    adapter(model_dir, tmp_path, target_modules=["q_proj"])
    version = load_version(base, tmp_path)
    own = storages(base)
    shared = {name for name, pointer in storages(version).items() if own[name] == pointer}
    assert {name for name in own if name not in shared} == {f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)}


def test_an_adapter_may_replace_whole_modules(base: PreTrainedModel, model_dir: Path, tmp_path: Path) -> None:
    expected = adapter(model_dir, tmp_path, target_modules=["v_proj"], modules_to_save=["lm_head"])
    assert torch.allclose(logits_of(load_version(base, tmp_path)), expected, atol=1e-4)


def test_an_adapters_folder_is_loaded_as_a_model(model_dir: Path, tmp_path: Path) -> None:
    expected = adapter(model_dir, tmp_path, target_modules=["q_proj", "down_proj"])
    assert folders.parts_of(str(tmp_path)) == (str(model_dir), tmp_path)
    assert torch.allclose(logits_of(load_model(str(tmp_path), "float32", "cpu")), expected, atol=1e-4)


def test_the_tokenizer_of_an_adapter_is_its_own_or_its_bases(model_dir: Path, tmp_path: Path) -> None:
    adapter(model_dir, tmp_path, target_modules=["q_proj"])
    assert folders.text_of(str(tmp_path)) == str(model_dir)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert folders.text_of(str(tmp_path)) == str(tmp_path)
    assert folders.text_of("owner/name") == "owner/name"


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ('{"base_model_name_or_path": "/gone/away"}', "without its base: the model folder /gone/away does not exist"),
        ('{"base_model_name_or_path": null}', "does not name the adapter's base: set base_model_name_or_path"),
        ("{", "adapter_config.json cannot be read"),
    ],
)
def test_an_adapter_without_a_base_is_refused(tmp_path: Path, description: str, words: str) -> None:
    (tmp_path / "adapter_model.safetensors").touch()
    (tmp_path / "adapter_config.json").write_text(description)
    with pytest.raises(ModelError, match=words):
        load_model(str(tmp_path), "float32", "cpu")


def test_half_an_adapter_and_one_on_another_are_refused(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{model_dir}"}}')
    with pytest.raises(ModelError, match=r"not a whole adapter: it has no adapter_model\.safetensors"):
        load_model(str(tmp_path / "one"), "float32", "cpu")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{tmp_path / "one"}"}}')
    (tmp_path / "two" / "adapter_model.safetensors").touch()
    with pytest.raises(ModelError, match="which is an adapter itself"):
        load_model(str(tmp_path / "two"), "float32", "cpu")


def test_full_weights_share_nothing(base: PreTrainedModel, other_dir: Path) -> None:
    version = load_version(base, other_dir)
    assert not set(storages(base).values()) & set(storages(version).values())
    weights = load_file(other_dir / "model.safetensors")
    assert all(torch.equal(p, weights[name]) for name, p in version.named_parameters())


def test_tied_weights_may_stand_once(model_dir: Path, tmp_path: Path) -> None:
    config = LlamaForCausalLM.from_pretrained(model_dir).config
    config.tie_word_embeddings = True
    LlamaForCausalLM(config).save_pretrained(tmp_path / "tied")
    base = load_model(str(tmp_path / "tied"), "float32", "cpu")
    weights = {n: w + 0.01 for n, w in base.state_dict().items() if n != "lm_head.weight"}
    (tmp_path / "next").mkdir()
    save_file(weights, tmp_path / "next" / "model.safetensors")
    version = load_version(base, tmp_path / "next")
    assert torch.equal(version.lm_head.weight, weights["model.embed_tokens.weight"])


def test_a_version_of_a_version_folder_is_refused_with_what_is_wrong(base: PreTrainedModel, tmp_path: Path) -> None:
    weights = dict(base.state_dict())
    cases = {
        "lacks 1 of the model's tensors": {n: w for n, w in weights.items() if n != "model.norm.weight"},
        "has unknown 1": {**weights, "value_head.weight": torch.zeros(1)},
        "has of other shapes": {**weights, "model.norm.weight": torch.zeros(3)},
    }
    for message, content in cases.items():
        save_file({n: w.clone() for n, w in content.items()}, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match=message):
            load_version(base, tmp_path)


def test_damaged_weights_are_refused(base: PreTrainedModel, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not safe")
    with pytest.raises(ModelError, match="cannot load weights from"):
        load_version(base, tmp_path)


def test_a_folder_without_weights_is_refused(base: PreTrainedModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"adapter_config.json.*model.safetensors"):
        load_version(base, tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        load_version(base, tmp_path / "nowhere")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_model(str(tmp_path / "nowhere"), "float32", "cpu")
    with pytest.raises(ModelError, match="not a model folder"):
        load_model(str(tmp_path), "float32", "cpu")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot load the model"):
        load_model(str(tmp_path), "float32", "cpu")


def test_a_device_that_is_not_there_is_refused(model_dir: Path) -> None:
    with pytest.raises(ModelError, match="cuda:99"):
        load_model(str(model_dir), "float32", "cuda:99")


def test_attention_that_is_not_the_standard_one_is_refused(tmp_path: Path) -> None:
    shape = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1}
    heads = {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    models = {
        "a gemma2 model: its Gemma2Attention needs 'softcap'": Gemma2ForCausalLM(Gemma2Config(**shape, **heads)),
        "a mamba model has linear_attention layers": MambaForCausalLM(MambaConfig(**shape)),
    }
    for message, model in models.items():
        folder = tmp_path / model.config.model_type
        model.save_pretrained(folder)
        with pytest.raises(ModelError, match=message):
            load_model(str(folder), "float32", "cpu")
