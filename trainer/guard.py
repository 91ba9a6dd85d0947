"""The guard against numbers that are not finite: an update that would take them in is left out, told and counted, and
too many such steps in a row end the run.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from moonmill.errors import RunError
from moonmill.trainer.models import Packed

_UPDATES = {"skipped_critic_updates": "critic", "skipped_updates": "policy"}
"""Metrics that count updates left out."""
_SHOWN = 8
"""Rollouts that are named."""


class Guard:
    """Counts learner steps with updates that were left out.

    Args:
        limit: so many in a row end the run.
    """

    def __init__(self, limit: int) -> None:
        self.in_a_row = 0
        """Such steps since the last sound one."""
        self._limit = limit

    def see(self, step: int, metrics: Mapping[str, float], suspects: Sequence[str]) -> str:
        """Take note of a step; returns what is to be told of it, or nothing.

        Args:
            step: its number.
            metrics: its metrics.
            suspects: ids of its rollouts that have log-probabilities that are not finite.

        Raises:
            RunError: it was one too many.
        """
        left_out = [name for metric, name in _UPDATES.items() if metrics.get(metric)]
        if not left_out:
            self.in_a_row = 0
            return ""
        self.in_a_row += 1
        which = " and ".join(left_out)
        text = f"learner step {step}: loss or gradients of the {which} were not finite"
        named = f"; not finite are the log-probabilities of {_named(suspects)}" if suspects else ""
        if self.in_a_row < self._limit:
            return f"{text}, and the update was left out{named}"
        steps = "step" if self.in_a_row == 1 else "steps"
        raise RunError(
            f"{text}, for {self.in_a_row} {steps} in a row (learner.max_bad_steps){named}: the run has diverged. Go "
            "back to a checkpoint with a lower learner.lr or algorithm.critic.lr"
        )


def not_finite(batch: Sequence[Packed], values: Sequence[Tensor]) -> list[int]:
    """Places in the batch of the rollouts with a value that is not finite.

    Args:
        batch: the micro-batches.
        values: `[action tokens]` of each.
    """
    found: set[int] = set()
    for packed, value in zip(batch, values, strict=True):
        micro = packed.batch
        parts = torch.split(value.isfinite(), list(micro.action_lengths))
        found |= {place for place, part in zip(micro.rollouts, parts, strict=True) if not part.all()}
    return sorted(found)


def _named(ids: Sequence[str]) -> str:
    rest = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return f"rollout{'s' if len(ids) > 1 else ''} {', '.join(ids[:_SHOWN])}{rest}"
