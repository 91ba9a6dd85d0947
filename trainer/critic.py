"""The critic: the policy's backbone with a value head.

It starts from the policy's weights. Its attention is frozen, and with it embeddings and norms: what learns are the MLP (or
MoE) projections and the head (SAO, arXiv 2607.07508). `freeze_attention: false` trains all of it. The head starts at 0, so
that the first values are 0 and not noise.
"""

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.trainer.packing import MicroBatch

_MLP_CLASSES = ("MLP", "FFN", "FeedForward", "Experts", "MoE", "Moe", "SparseMoe")
"""Parts of the class names transformers gives to what stands between two attentions."""


class Critic(nn.Module):
    """Values of packed contexts.

    Args:
        policy: whose backbone is copied.
        freeze_attention: train only MLPs and head.
    """

    def __init__(self, policy: PreTrainedModel, *, freeze_attention: bool) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(policy.base_model)
        hidden = policy.config.get_text_config().hidden_size
        self.head = nn.Linear(hidden, 1, device=policy.device, dtype=policy.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if freeze_attention:
            self.backbone.requires_grad_(False)
            for module in mlp_modules(self.backbone):
                module.requires_grad_(True)

    def forward(self, batch: MicroBatch) -> Tensor:
        """Value of the context up to and with each token: `[tokens]`."""
        out = self.backbone(
            input_ids=batch.ids, position_ids=batch.positions, use_cache=False, plan=batch.plan
        ).last_hidden_state
        values: Tensor = self.head(out)[0, :, 0].float()
        return values

    def trained(self) -> list[nn.Parameter]:
        """The parameters that learn."""
        return [p for p in self.parameters() if p.requires_grad]


def mlp_modules(model: nn.Module) -> list[nn.Module]:
    """The MLP and MoE blocks of a transformers model, by the names of their classes.

    Raises:
        ValueError: it has none that is recognised.
    """
    found = [m for m in model.modules() if any(part in type(m).__name__ for part in _MLP_CLASSES)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no module that looks like an MLP: nothing of the critic would learn")
    return found


def explained_variance(values: Tensor, targets: Tensor) -> float:
    """1 − Var(target − value) / Var(target): 1 is perfect, 0 no better than the mean; nan where targets do not vary."""
    variance = targets.var(correction=0)
    if variance < 1e-12:
        return float("nan")
    return float(1 - (targets - values).var(correction=0) / variance)


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error, `[tokens]`."""
    return 0.5 * (values - targets).square()


def moments(x: Tensor) -> tuple[float, float]:
    """Mean and standard deviation."""
    return float(x.mean()), float(x.std(correction=0)) if torch.numel(x) > 1 else 0.0
