"""Layers that mix tokens in other ways than attention does, over rollouts that lie end to end: linear attention, state
spaces, convolutions, recurrences.

What such a layer carries from token to token runs on from one rollout into the next. Here it is called as attention is:
rollouts of similar length become the rows of one call, padded on the right, where all that is causal hides the padding
from the real tokens (`moonmill.trainer.attention`). All else in the model goes on treating one row without padding.
"""

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.trainer.attention import PackedPlan
from moonmill.trainer.position_wise import mixers

_OF_ONE_ROW = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Arguments that tell kernels where rollouts begin in one row."""


def run_by_rollout(model: PreTrainedModel) -> None:
    """Have the layers of `model` that mix tokens otherwise than by attention see each rollout by itself, where a
    forward is given a `PackedPlan`. Copies of the model do as well; without a plan nothing changes.
    """
    for module in mixers(model).values():
        # What goes through transformers' interface for attention has this, since kernels ask for it.
        if not any(hasattr(part, "is_causal") for part in module.modules()):
            kind: Any = type(module)
            module.__class__ = _by_rollout(kind)


@cache
def _by_rollout(kind: type[nn.Module]) -> type[nn.Module]:
    """The same class with a forward that heeds a plan."""
    original: Callable[..., Any] = kind.forward
    first = list(inspect.signature(original).parameters)[1]

    @wraps(original)
    def forward(self: nn.Module, *args: Any, plan: PackedPlan | None = None, **kwargs: Any) -> Any:
        if plan is None:
            return original(self, *args, **kwargs)
        row: Tensor = args[0] if args else kwargs.pop(first)
        rest = {name: value for name, value in kwargs.items() if name not in _OF_ONE_ROW}
        parts = []
        for group, own in zip(plan.groups, torch.split(row[0], plan.sizes), strict=True):
            rows = own.index_select(0, group.tokens).view(group.rows, group.length, -1)
            mixed = original(self, rows, *args[1:], **rest)
            # Some return their state as well, which nothing here goes on from.
            out: Tensor = mixed if isinstance(mixed, Tensor) else mixed[0]
            parts.append(out.flatten(0, 1).index_select(0, group.kept))
        whole = torch.cat(parts).unsqueeze(0)
        return whole if isinstance(mixed, Tensor) else (whole, *mixed[1:])

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
