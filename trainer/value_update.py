"""The critic's part of a learner step: K value updates, and the values that advantages are made of."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moonmill.algorithm_config import CriticConfig, GaeConfig
from moonmill.config import LearnerConfig
from moonmill.trainer.advantages import critic_targets
from moonmill.trainer.critic import Critic, explained_variance
from moonmill.trainer.models import Packed
from moonmill.trainer.optimizing import Optimizer

Values = tuple[Tensor, Tensor]
"""Of a micro-batch: before each action token `[action tokens]`, and after each rollout's last token `[rollouts]`."""


class ValueUpdate:
    """A critic with its optimizer.

    Args:
        policy: what the critic is a copy of.
        config: the critic's.
        learner: what both optimizers have in common.

    Raises:
        ConfigError: attention is to be frozen, and the model has no MLP that could be told from it.
    """

    def __init__(self, policy: PreTrainedModel, config: CriticConfig, learner: LearnerConfig) -> None:
        self.config = config
        self.critic = Critic(policy, config)
        self._optimizer = Optimizer(self.critic.trained(), config.lr, learner)

    def update(self, batch: Sequence[Packed], advantage: GaeConfig, metrics: dict[str, float]) -> list[Values]:
        """K updates on one batch; returns the values from before them.

        A rollout is never split, so the first update's own forward pass gives what its targets need.
        """
        count = metrics["action_tokens"]
        before: list[Values] = []
        targets: list[Tensor] = []
        for update in range(self.config.updates):
            losses = []
            for index, packed in enumerate(batch):
                values, ends = self.critic(packed)
                if update == 0:
                    before.append((values.detach(), ends.detach()))
                    targets.append(critic_targets(advantage, packed.batch, *before[-1]))
                loss = 0.5 * (values - targets[index]).square().sum() / count
                torch.autograd.backward(loss)
                losses.append(loss.detach())
            norm, done = self._optimizer.update(losses)
            metrics["skipped_critic_updates"] = metrics.get("skipped_critic_updates", 0.0) + (not done)
        metrics["critic_grad_norm"] = norm
        value, target = torch.cat([v for v, _ in before]), torch.cat(targets)
        metrics["value_loss"] = float(0.5 * (value - target).square().mean())
        metrics["explained_variance"] = explained_variance(value, target)
        metrics["value_bias"] = float((value - target).mean())
        return before

    def values(self, batch: Sequence[Packed]) -> list[Values]:
        """The values as they are now."""
        with torch.no_grad():
            return [self.critic(packed) for packed in batch]

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's; the critic's weights are kept apart."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)
