"""The critic: a value for every context an action token was drawn from.

SAO, arXiv 2607.07508: the policy's backbone, starting from the policy's weights, with a value head; attention is
frozen, the MLP (or MoE) projections and the head are trained. The paper does not speak of embeddings, norms and the
routers of experts: they are frozen too. With `critic.lora` an adapter on those projections is trained in their place;
beside a policy that is an adapter itself, both stand on one base.

What always holds: the head starts at zero, so a critic that has learned nothing says 0, and advantages are returns. No
weight of the base is copied for a critic that shares it, and the policy is as it was outside of `at_work`.
"""

import copy
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.algorithm_config import CriticConfig
from moonmill.errors import ConfigError
from moonmill.trainer.models import Packed
from moonmill.trainer.position_wise import backbone_of, position_wise, projections
from moonmill.trainer.weights import own_tensors

if TYPE_CHECKING:
    from moonmill.trainer.lora import SideAdapter


class Critic(nn.Module):
    """A backbone with a value head.

    Args:
        policy: tells the width of the head and where it is kept.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        hidden = policy.config.get_text_config().hidden_size
        self.head = nn.Linear(hidden, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Values before each valued token `[valued tokens]` and after each rollout's last token `[rollouts]`.

        Called, and what comes of it propagated back, while `at_work`.
        """
        batch = packed.batch
        hidden: Tensor = self.body()(**packed.inputs).last_hidden_state[0]
        at = torch.cat([batch.valued - 1, batch.ends])
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.head(hidden[at].float()).squeeze(-1)
        return values[: len(batch.valued)], values[len(batch.valued) :]

    @abstractmethod
    def body(self) -> nn.Module:
        """The backbone."""

    @abstractmethod
    def at_work(self) -> AbstractContextManager[None]:
        """Forward and backward passes of the critic are made inside of this, those of the policy outside."""

    @abstractmethod
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it, by name."""


class WholeCritic(Critic):
    """A copy of a policy's backbone, in float32.

    Args:
        policy: is copied, not touched.
        config: whether attention is frozen.

    Raises:
        ConfigError: attention is to be frozen, and the model has no MLP that could be told from it.
    """

    def __init__(self, policy: PreTrainedModel, config: CriticConfig) -> None:
        super().__init__(policy)
        backbone: PreTrainedModel = copy.deepcopy(backbone_of(policy)).float().eval()
        self.backbone: nn.Module = backbone
        if config.freeze_attention:
            backbone.requires_grad_(False)
            for module in places_of(backbone, config).values():
                # Each module answers for its own parameters alone: what else stands inside an MLP stays frozen.
                for parameter in module.parameters(recurse=False):
                    parameter.requires_grad_(True)

    def body(self) -> nn.Module:
        return self.backbone

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()

    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad]

    def tensors(self) -> dict[str, Tensor]:
        return own_tensors(self)


class AdaptedCritic(Critic):
    """An adapter and a head on a base that is frozen.

    Args:
        policy: as of `Critic`.
        adapter: the critic's, on the policy's base or one of its own.
    """

    def __init__(self, policy: PreTrainedModel, adapter: "SideAdapter") -> None:
        super().__init__(policy)
        self._adapter = adapter

    def body(self) -> nn.Module:
        return self._adapter.backbone

    def at_work(self) -> AbstractContextManager[None]:
        return self._adapter.active()

    @property
    def adapter_parameters(self) -> list[nn.Parameter]:
        """Those of the adapter alone."""
        return [*self._adapter.parameters.values()]

    def trained(self) -> list[nn.Parameter]:
        return [*self.adapter_parameters, *self.head.parameters()]

    def tensors(self) -> dict[str, Tensor]:
        adapter = {f"adapter.{name}": p.detach() for name, p in self._adapter.parameters.items()}
        return adapter | {f"head.{name}": p.detach() for name, p in self.head.named_parameters()}


def places_of(model: PreTrainedModel, config: CriticConfig) -> dict[str, nn.Module]:
    """The projections that a critic trains, or puts its adapter on, by their paths in the model.

    Raises:
        ConfigError: there are none.
    """
    if found := position_wise(model) if config.freeze_attention else projections(model):
        return found
    if not config.freeze_attention:
        raise ConfigError(
            f"algorithm.critic.lora: {type(model).__name__} has no projections in its layers: leave it out"
        )
    raise ConfigError(
        f"algorithm.critic.freeze_attention: {type(model).__name__} has no MLP that can be told from what mixes its "
        "tokens, so that all of it would be frozen: set it to false"
    )
