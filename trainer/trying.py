"""What is tried of adapters when they are in place, since kernels and packing are others' code: that their gradients of
rollouts in one row are those of each rollout alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.config import ModelConfig
from moonmill.errors import ConfigError
from moonmill.trainer.attention import PackedPlan, implementation_of
from moonmill.trainer.models import precision

_ROLLOUTS = ((1, 2, 3, 1), (3, 1, 2))
_TOLERANCE = 0.3
"""Of the gradient's length. Rounding in 16 or 8 bits stays below; what is lost or mixed up goes far above."""


def refuse_wrong_gradients(
    model: PreTrainedModel, backbone: nn.Module, parameters: Sequence[nn.Parameter], config: ModelConfig
) -> None:
    """Try an adapter on a few tokens.

    Args:
        model: what tells of the attention and the device.
        backbone: the one that the adapter is in, and in use.
        parameters: the adapter's.
        config: says what is computed in.

    Raises:
        ConfigError: its gradients are nothing, or not those that they should be.
    """

    def gradient(rollouts: Sequence[Sequence[int]]) -> Tensor:
        ends = torch.tensor([0, *map(len, rollouts)]).cumsum(0).int()
        inputs = {
            "input_ids": torch.tensor([[token for rollout in rollouts for token in rollout]]),
            "position_ids": torch.tensor([[place for rollout in rollouts for place in range(len(rollout))]]),
        }
        plan = PackedPlan(ends.to(model.device)).kwargs(implementation_of(model))
        with precision(config, model.device):
            hidden = backbone(**{k: v.to(model.device) for k, v in inputs.items()}, use_cache=False, **plan)
        states: Tensor = hidden.last_hidden_state.float()
        # Weighed, for the sum of what a norm has passed hardly changes.
        score = (states * torch.arange(states.shape[-1], device=states.device).cos()).sum()
        if not score.requires_grad:
            return torch.zeros(1)
        found = torch.autograd.grad(score, parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.flatten().float() for gradient in found])

    together, alone = gradient(_ROLLOUTS), sum((gradient([r]) for r in _ROLLOUTS), torch.tensor(0.0))
    length = together.norm()
    if not length > 0 or not (together - alone).norm() <= _TOLERANCE * length:
        raise ConfigError(
            f"learner.backend: the gradients of an adapter in {type(model).__name__} are not what they should be: of "
            "two rollouts in one row they are not the sum of those of each. Set learner.backend to torch and "
            "learner.quantization to null; where it is so already, the learner cannot train this model"
        )
