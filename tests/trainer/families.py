"""Tiny models of many families of transformers, made at random: dense, with experts, and with layers that mix tokens in
other ways than attention does."""

from collections.abc import Callable
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.trainer.conftest import VOCAB

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SHARED = _EXPERTS | {"shared_expert_intermediate_size": 16}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_DEEPSEEK = {
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
_MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
_MAMBA_2 = _MAMBA | {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8}


def _family(model_type: str, **settings: Any) -> Callable[[], PreTrainedModel]:
    def make() -> PreTrainedModel:
        config = AutoConfig.for_model(model_type, **SHAPE | settings)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        return model

    return make


MADE: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": _family("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "opt": _family("opt", ffn_dim=48, word_embed_proj_dim=32),
    "gpt_neox": _family("gpt_neox"),
    "phi3": _family("phi3"),
    "bert": _family("bert", is_decoder=True),
    "qwen2_moe": _family("qwen2_moe", **_SHARED),
    "gpt_oss": _family("gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=8),
    "jetmoe": _family("jetmoe", num_local_experts=4, num_experts_per_tok=2, kv_channels=8),
    "deepseek_v3": _family("deepseek_v3", **_DEEPSEEK),
    "llama4_text": _family(
        "llama4_text", num_local_experts=4, intermediate_size_mlp=48, head_dim=8, interleave_moe_layer_step=2
    ),
    "gemma4_text": _family("gemma4_text", head_dim=8, global_head_dim=8, hidden_size_per_layer_input=8),
    "qwen3_next": _family("qwen3_next", head_dim=8, **_DELTA, **_SHARED),
    "qwen3_5_text": _family("qwen3_5_text", head_dim=8, **_DELTA),
    "jamba": _family(
        "jamba",
        num_experts=4,
        attn_layer_offset=1,
        attn_layer_period=2,
        expert_layer_offset=1,
        expert_layer_period=2,
        use_mamba_kernels=False,
        mamba_dt_rank=4,
        **_MAMBA,
    ),
    "falcon_h1": _family("falcon_h1", mamba_d_ssm=64, **_MAMBA_2),
    "granitemoehybrid": _family(
        "granitemoehybrid",
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=16,
        layer_types=["mamba", "attention"],
        **_MAMBA_2,
    ),
    "nemotron_h": _family(
        "nemotron_h",
        layers_block_type=["mamba", "attention", "moe", "mlp"],
        num_hidden_layers=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
        n_group=1,
        topk_group=1,
        mamba_num_heads=4,
        mamba_head_dim=16,
        n_groups=1,
        ssm_state_size=8,
        chunk_size=8,
        head_dim=8,
    ),
    "recurrent_gemma": _family("recurrent_gemma", lru_width=32, block_types=["recurrent", "attention"]),
    "lfm2": _family("lfm2", layer_types=["conv", "full_attention"], block_multiple_of=16),
    "minimax": _family(
        "minimax",
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["linear_attention", "full_attention"],
        head_dim=8,
    ),
    "kimi_linear": _family("kimi_linear"),
    "zamba": _family(
        "zamba",
        num_hidden_layers=4,
        attention_hidden_size=64,
        attention_head_dim=16,
        n_mamba_heads=2,
        mamba_dt_rank=4,
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        use_mamba_kernels=False,
        **_MAMBA,
    ),
    "xlstm": _family("xlstm", num_heads=4),
    "mamba": _family("mamba", hidden_size=16, num_hidden_layers=1),
    "mamba2": _family("mamba2", num_heads=4, head_dim=16, n_groups=1, state_size=8, chunk_size=8),
    "rwkv": _family("rwkv", attention_hidden_size=32),
}
