"""Between flat tensors `[tokens]`, rollout after rollout, and padded ones `[rollouts, longest]`."""

import torch
from torch import Tensor


def pad_right(flat: Tensor, lengths: Tensor) -> Tensor:
    """`[rollouts, longest]`, zeros behind the end of a rollout."""
    padded = flat.new_zeros(len(lengths), int(lengths.max()))
    padded[_inside(lengths)] = flat
    return padded


def unpad(padded: Tensor, lengths: Tensor) -> Tensor:
    """The inverse of `pad_right`."""
    return padded[_inside(lengths)]


def per_token(per_rollout: Tensor, lengths: Tensor) -> Tensor:
    """`[tokens]`: the value of each token's rollout."""
    return per_rollout.repeat_interleave(lengths)


def _inside(lengths: Tensor) -> Tensor:
    return torch.arange(int(lengths.max()), device=lengths.device) < lengths.unsqueeze(1)
