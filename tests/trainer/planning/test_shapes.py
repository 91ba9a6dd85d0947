"""Shapes: parameters as published, what is cached, what adapters are put on."""

import pytest
from transformers import Qwen3MoeConfig

from moonmill.config import LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.planning.catalogue import MODELS, config_for, entry_of
from moonmill.trainer.planning.parts import GIB
from moonmill.trainer.planning.shapes import Shape, shape_of

LORA = LoraConfig(r=16)
ATTENTION = LoraConfig(r=16, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))


def shape(name: str, lora: LoraConfig | None = None) -> Shape:
    return shape_of(config_for(name)[0], lora, None)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_published(name: str):
    published = MODELS[name].parameters
    tolerance = 0.01 if published % 1e8 == 0 else 0  # Gemma 4's model card has two digits
    assert shape(name).parameters == pytest.approx(published, rel=tolerance, abs=0)


def test_what_is_cached_is_that_of_shared_heads():
    # Qwen3-8B: 36 layers of 8 heads of 128, keys and values: 147,456 bytes a token in 16 bits.
    assert 2 * shape("qwen3-8b").keys_of(1) == 147_456
    # Llama 3.1 8B: 131,072, as the hub's blog on its memory says (16 GB for 128k tokens).
    assert 2 * shape("llama-3.1-8b").keys_of(1) == 131_072


def test_what_is_cached_is_what_servers_print():
    # Qwen3-235B-A22B on four cards, as reported in github.com/vllm-project/vllm/issues/21348: SGLang has 367,404 tokens
    # in 2 × 8.23 GB on each, vLLM 178,880 in 8.11 GiB.
    config = Qwen3MoeConfig(num_hidden_layers=94, num_attention_heads=64, num_key_value_heads=4, head_dim=128)
    of_token = 2 * shape_of(config, None, None).keys_of(1) / 4
    assert 367_404 * of_token == pytest.approx(2 * 8.23 * GIB, rel=0.001)
    assert 178_880 * of_token == pytest.approx(8.11 * GIB, rel=0.02)


def test_sliding_layers_keep_their_window():
    gemma = shape("gemma-3-1b")
    assert gemma.keys_of(512) == 26 * 512 * 512
    assert gemma.keys_of(4096) == 4 * 4096 * 512 + 22 * 512 * 512


def test_layers_that_share_keys_cache_none():
    # Gemma 4 E2B: the last 20 of 35 layers read those of two before them; of the rest 3 attend to everything.
    gemma = shape("gemma-4-e2b")
    assert sum(layer.keys > 0 for layer in gemma.layers) == 15
    assert gemma.keys_of(4096) == 12 * 512 * (2 * 256) + 3 * 4096 * (2 * 512)


def test_per_layer_embeddings_are_looked_up_and_not_multiplied():
    gemma = shape("gemma-4-e2b")
    assert gemma.lookups == 262_144 * 35 * 256
    assert gemma.parameters - gemma.quantizable > gemma.lookups
    assert gemma.active + gemma.head < 2.5e9  # the 2.3B that its card calls effective, with the head


def test_a_token_goes_through_some_of_the_experts():
    moe = shape("qwen3-30b-a3b")
    assert moe.expert_weights == 48 * 128 * 3 * 2048 * 768
    assert moe.active + moe.head + moe.embeddings == pytest.approx(3.35e9, rel=0.01)  # "3.3B activated"
    assert moe.quantizable < 0.05 * moe.parameters


def test_linear_attention_has_a_state_in_place_of_keys():
    hybrid = shape("qwen3.5-9b")
    assert hybrid.linear_attention == 24
    assert hybrid.keys_of(1000) == 8 * 1000 * 2 * 4 * 256
    # 32 heads of a 128 × 128 state, and 3 tokens of a convolution over 8,192 channels, in float32.
    assert hybrid.states == 24 * 4 * (32 * 128 * 128 + 3 * 8192)


def test_an_adapter_is_put_on_what_the_learner_puts_it_on():
    # Qwen3-0.6B, rank 16: q 1024 → 2048, k and v 1024 → 1024, o 2048 → 1024, gate and up 1024 → 3072, down back.
    own = (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 3 * (1024 + 3072)
    assert shape("qwen3-0.6b", LORA).adapted == 28 * own
    assert shape("qwen3-30b-a3b", ATTENTION).adapted == 48 * ((2048 + 4096) * 2 + 2 * (2048 + 512))


def test_a_convolution_is_no_experts_and_linear_attention_has_adapters_too():
    # Qwen3.5-9B: 24 layers of linear attention (in_proj_qkv, _z, _b, _a, out_proj), 8 of attention with gated queries.
    linear = (4096 + 8192) + (4096 + 4096) + 2 * (4096 + 32) + (4096 + 4096)
    own = (4096 + 8192) + 2 * (4096 + 1024) + (4096 + 4096)
    assert shape("qwen3.5-9b", LORA).adapted == 24 * linear + 8 * own + 32 * 3 * (4096 + 12288)


def test_experts_in_one_parameter_are_refused_as_the_learner_refuses_them():
    with pytest.raises(ConfigError, match=r"model\.lora\.target_modules: Qwen3MoeForCausalLM keeps its experts"):
        shape("qwen3-30b-a3b", LORA)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("google/gemma-4-E2B-it", "gemma-4-e2b"),
        ("models/Qwen3-0.6B/", "qwen3-0.6b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-8B-AWQ", None),
        ("Qwen/Qwen3-80B", None),
    ],
)
def test_the_catalogue_knows_a_model_by_its_name(path: str, name: str | None):
    assert entry_of(path) == name


def test_a_model_that_is_nowhere_is_told_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"there is no folder ./no-such-model.*qwen3-0\.6b"):
        config_for("./no-such-model")
