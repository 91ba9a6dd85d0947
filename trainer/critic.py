"""The critic: a value for every context an action token was drawn from.

SAO, arXiv 2607.07508: the policy's backbone, starting from the policy's weights, with a value head; attention is
frozen, the MLP (or MoE) projections and the head are trained. The paper does not speak of embeddings, norms and the
routers of experts: they are frozen too.

What always holds: the head starts at zero, so a critic that has learned nothing says 0, and advantages are returns.
"""

import copy
import re

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.algorithm_config import CriticConfig
from moonmill.errors import ConfigError
from moonmill.trainer.models import Packed

_MLP = re.compile(r"mlp|moe|feed_?forward|ffn|expert", re.IGNORECASE)
_OTHER = re.compile(r"attn|attention|deltanet|mamba|ssm|norm|router|\bgate\b", re.IGNORECASE)
"""Attention of every kind, linear too; and what stands inside an MLP, or is named after one, but is no projection."""


class Critic(nn.Module):
    """A copy of a policy's backbone with a value head, in float32.

    Args:
        policy: is copied, not touched.
        config: whether attention is frozen.

    Raises:
        ConfigError: attention is to be frozen, and the model has no MLP that could be told from it.
    """

    def __init__(self, policy: PreTrainedModel, config: CriticConfig) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(policy.base_model).float().eval()
        hidden = policy.config.get_text_config().hidden_size
        self.head = nn.Linear(hidden, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if config.freeze_attention:
            _freeze_all_but_mlps(self.backbone)

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Values before each action token `[action tokens]` and after each rollout's last token `[rollouts]`."""
        batch = packed.batch
        hidden: Tensor = self.backbone(**packed.inputs).last_hidden_state[0]
        at = torch.cat([batch.before, batch.ends])
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.head(hidden[at].float()).squeeze(-1)
        return values[: len(batch.actions)], values[len(batch.actions) :]

    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen."""
        return [p for p in self.parameters() if p.requires_grad]


def explained_variance(values: Tensor, targets: Tensor) -> float:
    """1 − Var(targets − values) / Var(targets): 1 is a perfect critic, 0 one that knows the mean at most.

    `nan` where the targets do not vary: there is nothing to explain.
    """
    spread = targets.double().var(correction=0)
    if spread == 0:
        return float("nan")
    return float(1 - (targets.double() - values.double()).var(correction=0) / spread)


def _freeze_all_but_mlps(backbone: nn.Module) -> None:
    backbone.requires_grad_(False)
    found = False
    for path, module in backbone.named_modules():
        names = f"{path} {type(module).__name__}"
        if not _MLP.search(names) or _OTHER.search(names):
            continue
        # Each module answers for its own parameters alone, so that a norm or a router inside an MLP stays frozen.
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(True)
            found = True
    if not found:
        raise ConfigError(
            f"algorithm.critic.freeze_attention: {type(backbone).__name__} has no MLP that can be told from its "
            "attention by name, so all of it would be frozen: set it to false"
        )
