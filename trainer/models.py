"""The policy as the learner holds it: loaded, and run over packed rollouts.

What always holds: what is trained is kept and updated in float32, whatever `model.dtype` says; with `bfloat16` the
forward pass runs under autocast, since steps as small as reinforcement learning's vanish in 16-bit weights. The base of
an adapter is not trained, and kept in `model.dtype`, or quantized. Modules are in eval mode, so that nothing random
stands between two passes over the same tokens.
"""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moonmill.agents.engine.folder import require_whole
from moonmill.config import Config, ModelConfig
from moonmill.errors import ConfigError
from moonmill.trainer.attention import UNSLOTH, PackedPlan, choose_implementation, implementation_of, refuse_mixing
from moonmill.trainer.backends import backend_of
from moonmill.trainer.devices import learner_device
from moonmill.trainer.logprobs import head_of, selected_logprobs
from moonmill.trainer.mixers import run_by_rollout
from moonmill.trainer.packing import MicroBatch
from moonmill.types import Sampling

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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


def load_policy(config: Config) -> PreTrainedModel:
    """The model to train: in float32, or where it is an adapter's base in `model.dtype`, or quantized.

    Raises:
        ConfigError: there is none, it cannot be loaded, or its rollouts cannot be packed.
    """
    source = config.model.path
    require_whole(source)
    path = Path(source)
    if not path.exists() and (source.startswith((".", "/", "~")) or source.count("/") != 1):
        raise ConfigError(f"model.path: there is no folder {source}, and a hub id has the form owner/name")
    if path.exists() and not (path / "config.json").is_file():
        raise ConfigError(f"model.path: {path} is not a model folder: it has no config.json")
    try:
        device = torch.device(learner_device(config))
        attention = choose_implementation(device, _DTYPES[config.model.dtype])
        model = backend_of(config).load(config, device, attention)
    except Exception as e:  # transformers, safetensors and torch raise whatever they like about a folder or a device
        reason = next(iter(str(e).strip().splitlines()), "")
        raise ConfigError(
            f"model.path: cannot load {source} on {learner_device(config)}: {type(e).__name__}: {reason}"
        ) from e
    run_by_rollout(model)
    with precision(config.model, device):
        refuse_mixing(model)
        if head_of(model, partial(_few_tokens, model)) is None and implementation_of(model) == UNSLOTH:
            raise ConfigError(
                f"learner.backend: unsloth has a forward of its own for {type(model).__name__}, whose head cannot be "
                "used by itself: set it to torch"
            )
    return model


def precision(config: ModelConfig, device: torch.device) -> AbstractContextManager[Any]:
    """The context forward passes run in.

    Autocast keeps no 16-bit copies of weights: they would be those from before an update that is made in the context.
    """
    dtype, enabled = _DTYPES[config.dtype], config.dtype != "float32"
    return torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=False)


def action_logprobs(
    model: PreTrainedModel, packed: Packed, sampling: Sampling, *, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the action tokens, and the entropies of what they were drawn from, under the run's sampling.

    Nothing is computed for observations beyond what attention needs of them, and never all logits at once
    (`moonmill.trainer.logprobs`).

    Args:
        model: the policy.
        packed: the micro-batch.
        sampling: the run's.
        entropy_grad: whether the entropies have a gradient.

    Returns:
        Log-probabilities `[action tokens]`, and entropies `[action tokens]` in nats.
    """
    batch = packed.batch
    head = head_of(model, partial(_few_tokens, model))
    if head is None:
        logits: Tensor = model(**packed.inputs, logits_to_keep=batch.before).logits[0]
        return selected_logprobs(logits, batch.sampled, sampling, entropy_grad)
    hidden: Tensor = model.base_model(**packed.inputs).last_hidden_state[0]
    return head.logprobs(hidden.index_select(0, batch.before), batch.sampled, sampling, entropy_grad)


def _few_tokens(model: PreTrainedModel) -> dict[str, Any]:
    plan = PackedPlan(torch.tensor([0, 3], dtype=torch.int32, device=model.device))
    return {
        "input_ids": torch.tensor([[1, 2, 3]], device=model.device),
        "position_ids": torch.tensor([[0, 1, 2]], device=model.device),
        "use_cache": False,
        **plan.kwargs(implementation_of(model)),
    }


def export_dtype(config: ModelConfig) -> torch.dtype:
    """What the engine is handed: the dtype it computes in."""
    return _DTYPES[config.dtype]
