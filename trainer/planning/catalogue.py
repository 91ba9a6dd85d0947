"""Models a plan can be made for without their files: what their config.json says of their shape.

Kept to what decides sizes; what is left out is as transformers' class for the family has it by default. `parameters` is
what is known here of the published weights (of Gemma 4 rounded; of Qwen3.5-9B it is transformers' own count): the tests
hold what transformers makes of each entry against it.
"""

import os
import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from moonmill.agents.engine.folder import require_hub
from moonmill.errors import ConfigError

_SUFFIX = re.compile(r"(-(it|instruct|base|pt|chat|thinking|hf|v0\.\d|\d{4}))*")
"""What names of further training add to a model's own: its shape is the same."""


class Known(Struct, frozen=True):
    """An entry."""

    config: dict[str, Any]
    parameters: float


def _qwen3(hidden: int, mlp: int, layers: int, heads: int, count: float, *, tied: bool) -> Known:
    shape = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, "head_dim": 128}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": 8, "max_position_embeddings": 40960}
    return Known({"model_type": "qwen3", "vocab_size": 151936, "tie_word_embeddings": tied, **shape}, count)


def _qwen2(hidden: int, mlp: int, layers: int, heads: int, keys: int, count: float, **others: Any) -> Known:
    shape = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": keys, "max_position_embeddings": 32768}
    return Known({"model_type": "qwen2", "vocab_size": 151936, "tie_word_embeddings": True, **shape, **others}, count)


def _llama(hidden: int, mlp: int, layers: int, heads: int, keys: int, count: float, **others: Any) -> Known:
    shape = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": keys, "vocab_size": 128256}
    return Known({"model_type": "llama", "max_position_embeddings": 131072, **shape, **others}, count)


def _gemma4(hidden: int, keys: int, layers: int, shared: int, every: int, count: float, *, double: bool) -> Known:
    """Text, vision and audio. Every so many layers one attends to everything; the last `shared` cache nothing."""
    kinds = (["sliding_attention"] * (every - 1) + ["full_attention"]) * (layers // every)
    text = {
        "model_type": "gemma4_text",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": keys,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": double,
        "layer_types": kinds,
        "final_logit_softcapping": 30.0,
    }
    vision = {"model_type": "gemma4_vision", "use_clipped_linears": True}
    return Known(
        {
            "model_type": "gemma4",
            "text_config": text,
            "vision_config": vision,
            "audio_config": {"model_type": "gemma4_audio"},
        },
        count,
    )


MODELS = {
    "smollm2-135m": _llama(
        576, 1536, 30, 9, 3, 134_515_008, vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=8192
    ),
    "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14, 2, 494_032_768),
    "qwen2.5-1.5b": _qwen2(1536, 8960, 28, 12, 2, 1_543_714_304),
    "qwen2.5-3b": _qwen2(2048, 11008, 36, 16, 2, 3_085_938_688),
    "qwen2.5-7b": _qwen2(3584, 18944, 28, 28, 4, 7_615_616_512, vocab_size=152064, tie_word_embeddings=False),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, 596_049_920, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, 1_720_574_976, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, 4_022_468_096, tied=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, 8_190_735_360, tied=False),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40, 14_768_307_200, tied=False),
    "qwen3-32b": _qwen3(5120, 25600, 64, 64, 32_762_123_264, tied=False),
    "qwen3-30b-a3b": Known(
        {
            "model_type": "qwen3_moe",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "max_position_embeddings": 40960,
        },
        30_532_122_624,
    ),
    # Its class in transformers has this model's shape by default ("the Qwen3.5-9B style configuration"). As a causal
    # language model transformers makes the text part alone, so that the published 9.7B, with vision, is not met.
    "qwen3.5-9b": Known({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, 8_953_803_264),
    "llama-3.2-1b": _llama(2048, 8192, 16, 32, 8, 1_235_814_400, head_dim=64, tie_word_embeddings=True),
    "llama-3.2-3b": _llama(3072, 8192, 28, 24, 8, 3_212_749_824, tie_word_embeddings=True),
    "llama-3.1-8b": _llama(4096, 14336, 32, 32, 8, 8_030_261_248),
    "mistral-7b": Known(
        {
            "model_type": "mistral",
            "vocab_size": 32768,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "sliding_window": None,
        },
        7_248_023_552,
    ),
    "gemma-3-1b": Known(
        {
            "model_type": "gemma3_text",
            "vocab_size": 262144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "sliding_window": 512,
            "max_position_embeddings": 32768,
        },
        999_885_952,
    ),
    "gemma-4-e2b": _gemma4(1536, 1, 35, 20, 5, 5.1e9, double=True),
    "gemma-4-e4b": _gemma4(2560, 2, 42, 18, 6, 8.0e9, double=False),
}


def entry_of(path: str) -> str | None:
    """The name under which the catalogue has the model of a path or hub id; None where it has not."""
    name = path.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    return next((known for known in MODELS if name.startswith(known) and _SUFFIX.fullmatch(name[len(known) :])), None)


def config_for(path: str) -> tuple[Any, str]:
    """transformers' configuration of a model, and where it is from.

    Args:
        path: a folder with a config.json, a name that the catalogue knows, or a hub id.

    Raises:
        ConfigError: it is none of these, or the configuration cannot be read.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if (name := entry_of(path)) and not os.path.isdir(path):
        told = dict(MODELS[name].config)
        return CONFIG_MAPPING[told.pop("model_type")].from_dict(told), f"the catalogue's {name}"
    if not os.path.isdir(path):
        if path.count("/") != 1 or path.startswith((".", "/", "~")):
            raise ConfigError(
                f"model.path: there is no folder {path}, and the catalogue knows no model of that name: it has "
                f"{', '.join(MODELS)}"
            )
        try:
            require_hub(path)
        except ConfigError as e:
            raise ConfigError(
                f"{e}; to plan, a folder with config.json alone is enough, and the catalogue has {', '.join(MODELS)}"
            ) from e
    elif not (Path(path) / "config.json").is_file():
        raise ConfigError(f"model.path: {path} is not a model folder: it has no config.json")
    try:
        return AutoConfig.from_pretrained(path), path
    except Exception as e:  # transformers raises whatever it likes about a file
        reason = next(iter(str(e).strip().splitlines()), "")
        raise ConfigError(f"model.path: {path}: its config.json cannot be read: {type(e).__name__}: {reason}") from e
