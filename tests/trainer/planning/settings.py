"""Configs that plans are made of, as files would hold them."""

from pathlib import Path
from typing import Any

from moonmill.config import Config
from moonmill.config_io import make_config


def config_of(path: str, *overrides: str, **sections: Any) -> Config:
    """One card for engine and learner: vLLM at half of it, and policy and critic as adapters of rank 16."""
    data = {
        "env": {"id": "calculator-v0"},
        "model": {"path": path, "max_length": 4096, "dtype": "bfloat16", "device": "cuda", "lora": {"r": 16}},
        "engine": {"type": "vllm", "vllm": {"gpu_memory": 0.5}},
        "algorithm": {"preset": "sao", "critic": {"lora": {}}},
        "learner": {"gradient_checkpointing": True, "micro_batch_tokens": 8192},
        **sections,
    }
    return make_config(data, overrides, source="a test", folder=Path())
