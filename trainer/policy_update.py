"""The policy's part of a learner step: one update from a batch and its advantages."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.algorithm_config import DisConfig
from moonmill.config import Config
from moonmill.trainer.algorithms.dis import dis
from moonmill.trainer.algorithms.ppo_clip import ppo_clip
from moonmill.trainer.algorithms.presets import Objective
from moonmill.trainer.guard import not_finite
from moonmill.trainer.metrics import TokenStats, policy_metrics
from moonmill.trainer.models import Packed, action_logprobs
from moonmill.trainer.optimizing import Optimizer


class PolicyUpdate:
    """A policy with its objective and optimizer.

    Args:
        policy: the model.
        parameters: those of it that are trained.
        objective: what an update maximises.
        config: the run's.
    """

    def __init__(
        self, policy: PreTrainedModel, parameters: Sequence[nn.Parameter], objective: Objective, config: Config
    ) -> None:
        self.suspects: list[int] = []
        """Places in the last batch of rollouts that have log-probabilities, ours or as sampled, that are not finite;
        only looked for where the update was left out."""
        self._policy = policy
        self._sampling = config.sampling
        self._objective = _objective(objective)
        self._optimizer = Optimizer(parameters, config.learner.lr, config.learner, config.learner.warmup_steps)

    def update(
        self, batch: Sequence[Packed], advantages: Sequence[Tensor], version: int, metrics: dict[str, float]
    ) -> bool:
        """Update once; returns whether that was done: not where loss or gradients were not finite.

        Args:
            batch: the micro-batches.
            advantages: `[action tokens]` of each.
            version: the policy's, before the update.
            metrics: has `action_tokens`; what is measured is added.
        """
        count = metrics["action_tokens"]
        stats = []
        for packed, advantage in zip(batch, advantages, strict=True):
            micro = packed.batch
            logprobs, entropy = action_logprobs(self._policy, packed, self._sampling)
            loss, kept = self._objective(logprobs, micro.behaviour, advantage)
            torch.autograd.backward(loss.sum() / count)
            fresh = micro.versions == version
            stats.append(TokenStats(logprobs.detach(), micro.behaviour, kept, entropy, loss.detach(), fresh))
        metrics |= policy_metrics(stats)
        metrics["lr"] = self._optimizer.lr
        metrics["grad_norm"], done = self._optimizer.update(s.loss for s in stats)
        metrics["skipped_updates"] = float(not done)
        self.suspects = [] if done else not_finite(batch, [s.logprobs + s.behaviour for s in stats])
        return done

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's; the policy's weights are kept apart."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)


def _objective(config: Objective) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    return partial(dis if isinstance(config, DisConfig) else ppo_clip, low=config.low, high=config.high)
