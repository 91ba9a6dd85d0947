"""AdamW and what surrounds it: the learning rate's course, clipping, and no update where something is not finite."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moonmill.config import LearnerConfig
from moonmill.ranges import Schedule


@dataclass(frozen=True)
class Course:
    """What a learning rate is at any time, as shares of its highest: it rises over an optimizer's own first updates,
    and falls over the policy updates of the run."""

    schedule: Schedule = "constant"
    warmup: int = 0
    """Updates of the optimizer over which it rises linearly; the first is at 1/warmup."""
    falls_from: int = 0
    """The version from which it falls,"""
    falls_to: int = 1
    """and the one at which it would be 0: the run's last."""

    def at(self, updates: int, version: int) -> float:
        """The share after so many updates of the optimizer, in the step that begins with this version."""
        rise = min(1.0, (updates + 1) / max(1, self.warmup))
        gone = (version - self.falls_from) / max(1, self.falls_to - self.falls_from)
        left = 1.0 - min(1.0, max(0.0, gone))
        if self.schedule == "linear":
            return rise * left
        if self.schedule == "cosine":
            return rise * (1 - math.cos(math.pi * left)) / 2
        return rise


class Optimizer:
    """Updates parameters from the gradients they hold.

    Args:
        parameters: the trained ones.
        lr: the highest learning rate.
        config: betas, weight decay and the largest gradient norm.
        course: what becomes of the learning rate.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, config: LearnerConfig, course: Course) -> None:
        self.updates = 0
        """Updates done."""
        self.scale = 1.0
        """What the learning rate is multiplied by."""
        self._parameters = list(parameters)
        self._peak = lr
        self._course = course
        self._max_norm = config.max_grad_norm
        self._adam = torch.optim.AdamW(
            self._parameters, lr=lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )

    def lr(self, version: int) -> float:
        """The learning rate of the next update; the version is the policy's, before the step."""
        return self.scale * self._peak * self._course.at(self.updates, version)

    def update(self, losses: Iterable[Tensor], version: int) -> tuple[float, bool]:
        """Clip, update, and drop the gradients.

        Args:
            losses: what the gradients are of.
            version: the policy's, before the step.

        Returns:
            The gradients' norm before clipping, and whether there was an update: none where that or a loss is not
            finite.
        """
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self._max_norm))
        finite = norm - norm == 0 and all(bool(loss.isfinite().all()) for loss in losses)
        if finite:
            for group in self._adam.param_groups:
                group["lr"] = self.lr(version)
            self._adam.step()
            self.updates += 1
        self._adam.zero_grad(set_to_none=True)
        return norm, finite

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self._adam.load_state_dict(state["adam"])
