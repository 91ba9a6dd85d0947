"""How healthy a critic is: explained variance, bias by turn, calibration.

All are of values from before a step's updates against the targets of that step, so a critic is judged by rollouts that
it has not yet learned from. None changes with the order of the rollouts in a batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from moonmill.trainer.explained import Variance

_BINS = 10
_ROUNDING = 2 * torch.finfo(torch.float32).eps
"""Share of values and targets together by which equal targets may differ: they are made of float32 advantages and
values."""
_MOST_TURNS = 8
"""Turns whose bias is told; what comes later is rare, and noise."""


def variance_of(values: Tensor, targets: Tensor) -> Variance:
    """Var(targets − values) and Var(targets), of `[action tokens]`; the latter is 0 where rounding is all there is."""
    values, targets = values.double(), targets.double()
    alike = targets.max() - targets.min() <= _ROUNDING * (values.abs().max() + targets.abs().max())
    return Variance(float((targets - values).var(correction=0)), 0.0 if alike else float(targets.var(correction=0)))


def bias_by_turn(values: Tensor, targets: Tensor, turns: Tensor) -> dict[int, float]:
    """By how much values are too high on average, for the action tokens of each turn.

    Args:
        values: `[action tokens]`.
        targets: `[action tokens]`.
        turns: `[action tokens]`, the turn of each, counted from 1.
    """
    off = (values - targets).double()
    present = sorted(set(turns.tolist()))
    return {turn: float(off[turns == turn].mean()) for turn in present if turn <= _MOST_TURNS}


def turns_of(turn_lengths: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The turn of each action token, `[action tokens]`, counted from 1, of rollouts that lie one after the other."""
    numbers = [turn for lengths in turn_lengths for turn in range(1, len(lengths) + 1)]
    counts = [length for lengths in turn_lengths for length in lengths]
    return torch.tensor(numbers).repeat_interleave(torch.tensor(counts)).to(device)


def calibration_error(values: Tensor, targets: Tensor) -> float:
    """The expected calibration error, by deciles of the predicted value: |mean value − mean target| of each, averaged
    over the action tokens.

    0 where those contexts that the critic gives a value have that value on average, however little it tells them apart.
    Equal values are never parted, so there may be fewer groups than ten.

    Args:
        values: `[action tokens]`.
        targets: `[action tokens]`.
    """
    values, targets = values.double(), targets.double()
    ordered = values.sort().values
    at = torch.arange(1, _BINS, device=values.device) * len(values) // _BINS
    groups = torch.bucketize(values, ordered[at], right=True)
    zeros = values.new_zeros(_BINS)
    return float((zeros.index_add(0, groups, values - targets)).abs().sum() / len(values))
