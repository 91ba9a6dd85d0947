"""The critic's part of a learner step: K value updates, and the values that advantages are made of."""

from collections import deque
from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from moonmill.algorithm_config import CriticConfig, GaeConfig
from moonmill.config import Config
from moonmill.trainer.advantages import critic_targets
from moonmill.trainer.critic import Critic
from moonmill.trainer.explained import Variance, explained_variance
from moonmill.trainer.models import Packed
from moonmill.trainer.optimizing import Course, Optimizer
from moonmill.trainer.value_health import bias_by_turn, calibration_error, turns_of, variance_of
from moonmill.trainer.warm_up import WarmUp

Values = tuple[Tensor, Tensor]
"""Of a micro-batch: before each valued token `[valued tokens]`, and after each rollout's last token `[rollouts]`."""
_SMOOTHED = 20
"""Steps: the explained variance of one batch is noisy."""


class ValueUpdate:
    """A critic with its optimizer, its warm-up and its health.

    Args:
        critic: what is trained.
        algorithm: its config.
        config: the run's.
    """

    def __init__(self, critic: Critic, algorithm: CriticConfig, config: Config) -> None:
        self.config = algorithm
        self.critic = critic
        self.warm_up = WarmUp(algorithm)
        course = Course(algorithm.schedule, algorithm.lr_warmup_steps * algorithm.updates, falls_to=config.train.steps)
        self._optimizer = Optimizer(critic.trained(), algorithm.lr, config.learner, course)
        self._recent: deque[Variance] = deque(maxlen=_SMOOTHED)

    def update(
        self, batch: Sequence[Packed], advantage: GaeConfig, version: int, metrics: dict[str, float]
    ) -> list[Values]:
        """K updates on one batch; returns the values from before them.

        A rollout is never split, so the first update's own forward pass gives what its targets need.

        Args:
            batch: the micro-batches.
            advantage: says what the targets are.
            version: the policy's, before the step.
            metrics: what is measured is added.
        """
        count = sum(len(packed.batch.valued) for packed in batch)
        before: list[Values] = []
        targets: list[Tensor] = []
        with self.critic.at_work():
            for update in range(self.config.updates):
                losses, clipped = [], 0.0
                for index, packed in enumerate(batch):
                    values, ends = self.critic(packed)
                    if update == 0:
                        before.append((values.detach(), ends.detach()))
                        targets.append(critic_targets(advantage, packed.batch, *before[-1]))
                    each, outside = value_losses(values, before[index][0], targets[index], self.config.value_clip)
                    loss = each.sum() / count
                    torch.autograd.backward(loss)
                    losses.append(loss.detach())
                    clipped += float(outside.sum())
                metrics["critic_lr"] = self._optimizer.lr(version)
                metrics["critic_grad_norm"], done = self._optimizer.update(losses, version)
                metrics["skipped_critic_updates"] = metrics.get("skipped_critic_updates", 0.0) + (not done)
        if self.config.value_clip is not None:
            metrics["value_clipped_share"] = clipped / count
        turns = torch.cat([turns_of(p.batch.turn_lengths, p.batch.tokens.device) for p in batch])
        acting = [p.batch.acting for p in batch]
        told = torch.cat([v[at] for (v, _), at in zip(before, acting, strict=True)])
        self._measure(told, torch.cat([t[at] for t, at in zip(targets, acting, strict=True)]), turns, metrics)
        return before

    def values(self, batch: Sequence[Packed]) -> list[Values]:
        """The values as they are now."""
        with torch.no_grad(), self.critic.at_work():
            return [self.critic(packed) for packed in batch]

    def scale_lr(self, scale: float) -> None:
        """Multiply the learning rate by this, from the next update on."""
        self._optimizer.scale = scale

    def state_dict(self) -> dict[str, Any]:
        """All but the critic's weights, which are kept apart."""
        recent = [tuple(v) for v in self._recent]
        return {"optimizer": self._optimizer.state_dict(), "warm_up": self.warm_up.state_dict(), "recent": recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self.warm_up.load_state_dict(state["warm_up"])
        self._recent.clear()
        self._recent.extend(Variance(*v) for v in state["recent"])

    def _measure(self, values: Tensor, targets: Tensor, turns: Tensor, metrics: dict[str, float]) -> None:
        variance = variance_of(values, targets)
        known = isfinite(variance.left) and isfinite(variance.all)
        metrics["value_loss"] = float(0.5 * (values - targets).square().mean())
        metrics["return_std"] = variance.all**0.5
        metrics["explained_variance"] = explained_variance([variance])
        if known:
            self._recent.append(variance)
            metrics["explained_variance_smoothed"] = explained_variance(self._recent)
        metrics["value_bias"] = float((values - targets).mean())
        metrics |= {f"value_bias_turn_{turn}": bias for turn, bias in bias_by_turn(values, targets, turns).items()}
        metrics["value_calibration_error"] = calibration_error(values, targets)
        if not self.warm_up.over:
            self.warm_up.see(variance if known else None)
            metrics["critic_ready"] = float(self.warm_up.over)


def value_losses(values: Tensor, before: Tensor, targets: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Half the squared error of each value, `[valued tokens]`, and where the clipped one counts, `[valued tokens]`.

    With `clip` as PPO's reference code has it (arXiv 1707.06347; arXiv 2005.12729, section 3):
    ½·max((V − R)², (V_before + clamp(V − V_before, −clip, clip) − R)²).

    Args:
        values: V, `[valued tokens]`.
        before: V_before, those from before the step's updates.
        targets: R.
        clip: how far a value is to move from `before`; None clips nothing.
    """
    plain = (values - targets).square()
    if clip is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    clipped = (before + (values - before).clamp(-clip, clip) - targets).square()
    return 0.5 * torch.maximum(plain, clipped), clipped > plain
