"""Attention inside each of many rollouts that are packed into one row.

Everything in a transformer but attention treats tokens one by one, so a packed row computes no padding there. For the
attention, rollouts of similar length are laid side by side and handed to the kernel together. No mask is needed for what
is padded then: a token sees only what stands before it, and padding stands behind.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

IMPLEMENTATION = "moonmill_packed"
_WASTE = 1.25
"""Rollouts share a call of the kernel while none is padded to more than so many times its length."""
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""What some models hand to their attention and this one cannot do."""


class PackedPlan(NamedTuple):
    """Where the rollouts of a packed row stand. Made once, used by every layer."""

    groups: list[Tensor]
    """Each `[rollouts, longest]`: the place in the row of each token; a rollout's last place again behind its end."""
    back: Tensor
    """`[tokens]`: where each token of the row stands in the groups, laid out flat one after the other."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> "PackedPlan":
        """The plan of rollouts with these lengths, in their order."""
        starts = torch.tensor([0, *lengths]).cumsum(0)
        back = torch.empty(int(starts[-1]), dtype=torch.long)
        groups = []
        offset = 0
        for members in _similar(lengths):
            longest = lengths[members[0]]
            columns = torch.arange(longest)
            sizes = torch.tensor([lengths[i] for i in members]).unsqueeze(1)
            places = starts[torch.tensor(members)].unsqueeze(1) + torch.minimum(columns, sizes - 1)
            inside = columns < sizes
            back[places[inside]] = offset + torch.arange(places.numel()).view_as(places)[inside]
            offset += places.numel()
            groups.append(places.to(device))
        return cls(groups, back.to(device))


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: PackedPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query `[1, heads, tokens, dim]` to `[1, tokens, heads, dim]`."""
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"{type(module).__name__} uses {name}, which packed attention cannot do")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    parts = []
    for places in plan.groups:
        longest = places.shape[1]
        windowed = sliding_window is not None and sliding_window < longest
        out = scaled_dot_product_attention(
            q[places].transpose(1, 2),
            k[places].transpose(1, 2),
            v[places].transpose(1, 2),
            attn_mask=_window(longest, sliding_window or 0, q.device) if windowed else None,
            is_causal=not windowed,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[plan.back].unsqueeze(0), None


def _similar(lengths: Sequence[int]) -> list[list[int]]:
    """Indices grouped by similar length, longest first."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not groups or lengths[groups[-1][0]] > _WASTE * lengths[index]:
            groups.append([])
        groups[-1].append(index)
    return groups


def _window(length: int, window: int, device: torch.device) -> Tensor:
    at = torch.arange(length, device=device)
    distance = at.unsqueeze(1) - at
    return (distance >= 0) & (distance < window)


AttentionInterface.register(IMPLEMENTATION, packed_attention)
# The plan says what may see what; no mask is made.
AttentionMaskInterface.register(IMPLEMENTATION, lambda *args, **kwargs: None)
