"""The guard against numbers that are not finite: an update that would take them in is left out, told and counted.
`moonmill.trainer.alarms` notices where there are too many such steps in a row.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from moonmill.trainer.models import Packed

_UPDATES = {"skipped_critic_updates": "critic", "skipped_updates": "policy"}
"""Metrics that count updates left out."""
_SHOWN = 8
"""Rollouts that are named."""


def notice(step: int, metrics: Mapping[str, float], suspects: Sequence[str]) -> str:
    """What is to be told of a learner step whose updates may have been left out; of others nothing.

    Args:
        step: its number.
        metrics: its metrics.
        suspects: ids of its rollouts that have log-probabilities that are not finite.
    """
    left_out = [name for metric, name in _UPDATES.items() if metrics.get(metric)]
    if not left_out:
        return ""
    named = f"; not finite are the log-probabilities of {_named(suspects)}" if suspects else ""
    return (
        f"learner step {step}: loss or gradients of the {' and '.join(left_out)} were not finite, and the update was "
        f"left out{named}"
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
