"""AdamW and what surrounds it: learning-rate warm-up, clipping, and no update where something is not finite."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moonmill.config import LearnerConfig


class Optimizer:
    """Updates parameters from the gradients they hold.

    Args:
        parameters: the trained ones.
        lr: the learning rate after the warm-up.
        config: betas, weight decay and the largest gradient norm.
        warmup: updates over which the learning rate rises linearly; the first is at `lr / warmup`.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, config: LearnerConfig, warmup: int = 0) -> None:
        self.updates = 0
        """Updates done."""
        self._parameters = list(parameters)
        self._peak = lr
        self._warmup = warmup
        self._max_norm = config.max_grad_norm
        self._adam = torch.optim.AdamW(
            self._parameters, lr=lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self._peak * min(1.0, (self.updates + 1) / max(1, self._warmup))

    def update(self, losses: Iterable[Tensor]) -> tuple[float, bool]:
        """Clip, update, and drop the gradients.

        Args:
            losses: what the gradients are of.

        Returns:
            The gradients' norm before clipping, and whether there was an update: none where that or a loss is not
            finite.
        """
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self._max_norm))
        finite = norm - norm == 0 and all(bool(loss.isfinite().all()) for loss in losses)
        if finite:
            for group in self._adam.param_groups:
                group["lr"] = self.lr
            self._adam.step()
            self.updates += 1
        self._adam.zero_grad(set_to_none=True)
        return norm, finite

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self._adam.load_state_dict(state["adam"])
