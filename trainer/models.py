"""The policy as the learner holds it: loaded, and run over packed rollouts.

What always holds: what is trained is kept and updated in float32, whatever `model.dtype` says; with `bfloat16` the
forward pass runs under autocast, since steps as small as reinforcement learning's vanish in 16-bit weights. The base of
an adapter is not trained, and kept in `model.dtype`. Modules are in eval mode, so that nothing random stands between
two passes over the same tokens.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from moonmill.agents.engine.folder import require_whole
from moonmill.agents.engine.sampling import processed_logprobs
from moonmill.config import ModelConfig
from moonmill.errors import ConfigError
from moonmill.trainer.attention import PackedPlan, choose_implementation, refuse_mixing
from moonmill.trainer.packing import MicroBatch
from moonmill.types import Sampling

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ENTROPY_ROWS = 1024
"""Rows of a vocabulary's width that are looked at together, to bound the memory."""


class Packed:
    """A micro-batch ready for forward passes: on the device, with its attention planned.

    Args:
        batch: the micro-batch.
        implementation: the attention the models were loaded with.
        device: where they are.
    """

    def __init__(self, batch: MicroBatch, implementation: str, device: torch.device) -> None:
        self.batch = batch.to(device)
        self.inputs: dict[str, Any] = {
            "input_ids": self.batch.tokens.unsqueeze(0),
            "position_ids": self.batch.positions.unsqueeze(0),
            "use_cache": False,
            **PackedPlan(self.batch.cu_seqlens).kwargs(implementation),
        }
        """Arguments of a model's forward."""


def load_policy(config: ModelConfig) -> PreTrainedModel:
    """The model to train: in float32, or where it is an adapter's base in `model.dtype`.

    Raises:
        ConfigError: there is none, it cannot be loaded, or its rollouts cannot be packed.
    """
    require_whole(config.path)
    path = Path(config.path)
    if not path.exists() and (config.path.startswith((".", "/", "~")) or config.path.count("/") != 1):
        raise ConfigError(f"model.path: there is no folder {config.path}, and a hub id has the form owner/name")
    if path.exists() and not (path / "config.json").is_file():
        raise ConfigError(f"model.path: {path} is not a model folder: it has no config.json")
    try:
        device = torch.device(config.device)
        implementation = choose_implementation(device, _DTYPES[config.dtype])
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            config.path,
            config=AutoConfig.from_pretrained(config.path),
            dtype=_DTYPES[config.dtype] if config.lora else torch.float32,
            attn_implementation=implementation,
        )
        model = model.to(device).eval().requires_grad_(True)
    except Exception as e:  # transformers, safetensors and torch raise whatever they like about a folder or a device
        reason = next(iter(str(e).strip().splitlines()), "")
        raise ConfigError(
            f"model.path: cannot load {config.path} on {config.device}: {type(e).__name__}: {reason}"
        ) from e
    with precision(config):
        refuse_mixing(model)
    return model


def implementation_of(model: PreTrainedModel) -> str:
    """The attention a model was loaded with."""
    name: str = model.config._attn_implementation
    return name


def precision(config: ModelConfig) -> AbstractContextManager[Any]:
    """The context forward passes run in."""
    dtype = _DTYPES[config.dtype]
    return torch.autocast(torch.device(config.device).type, dtype=dtype, enabled=dtype is not torch.float32)


def action_logprobs(model: PreTrainedModel, packed: Packed, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the action tokens, and the entropies of what they were drawn from, under the run's sampling.

    Nothing is computed for observations beyond what attention needs of them.

    Returns:
        Log-probabilities `[action tokens]`, and entropies `[action tokens]` in nats, without gradient.
    """
    logits: Tensor = model(**packed.inputs, logits_to_keep=packed.batch.before).logits[0]
    sampled = packed.batch.sampled
    everything = processed_logprobs(logits, sampling.temperature, sampling.top_p, sampling.top_k, keep=sampled)
    return everything.gather(-1, sampled.unsqueeze(-1)).squeeze(-1), _entropies(everything)


def _entropies(logprobs: Tensor) -> Tensor:
    """Entropy `[rows]` of distributions `[rows, vocabulary]`."""
    parts = torch.split(logprobs.detach(), _ENTROPY_ROWS)
    return torch.cat([torch.special.entr(rows.exp()).sum(-1) for rows in parts])


def export_dtype(config: ModelConfig) -> torch.dtype:
    """What the engine is handed: the dtype it computes in."""
    return _DTYPES[config.dtype]
