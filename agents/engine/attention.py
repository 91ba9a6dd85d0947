"""The cache of keys and values, and the attention over it.

A model's own forward runs over one row of tokens, packed from many requests: first come first, no padding. Everything
that is not attention treats tokens one by one and never notices. Attention is replaced, through transformers'
`AttentionInterface`, by `slot_attention`: it stores the new keys and values in their requests' slots and lets every
token see its own slot up to its own position, no further and nothing else.

Tokens are grouped by how many their request has in this step: all decoding requests, which have one, are one group and
one call of the kernel; prompts of similar length are another.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from moonmill.errors import ConfigError

IMPLEMENTATION = "moonmill_slots"
_FIRST_CAPACITY = 128
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""What some models hand to their attention and ours cannot do."""


class Chunk(NamedTuple):
    """Tokens of one request in one step: `length` of them, the first at position `start` of `slot`."""

    slot: int
    start: int
    length: int


class KVCache:
    """Keys and values of `slots` requests, per layer `[slots, capacity, heads, dim]`; capacity grows to `max_length`.

    Layers come into being when they are first written to, so that nothing has to be known about a model's shapes.
    """

    def __init__(self, slots: int, max_length: int) -> None:
        self.slots = slots
        self.max_length = max_length
        self.capacity = min(_FIRST_CAPACITY, max_length)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        """Free the memory of all slots, with what is in them."""
        self._layers.clear()
        self.capacity = min(_FIRST_CAPACITY, self.max_length)

    def reserve(self, length: int) -> None:
        """Make room for slots of `length` tokens."""
        if length <= self.capacity:
            return
        old, self.capacity = self.capacity, min(self.max_length, max(2 * self.capacity, length))
        for index, layer in self._layers.items():
            grown = tuple(t.new_zeros(self.slots, self.capacity, *t.shape[2:]) for t in layer)
            for new, filled in zip(grown, layer, strict=True):
                new[:, :old] = filled
            self._layers[index] = (grown[0], grown[1])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` tokens of slot `source`."""
        for layer in self._layers.values():
            for tensor in layer:
                tensor[target, :length] = tensor[source, :length]

    def store(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values `[tokens, heads, dim]` to `places`; returns the layer's whole keys and values."""
        held = self._layers.get(layer)
        if held is None:
            # Zeros, not garbage: what lies beyond a slot's length is masked, but 0 times nan would still be nan.
            shape = (self.slots, self.capacity)
            held = (keys.new_zeros(*shape, *keys.shape[1:]), values.new_zeros(*shape, *values.shape[1:]))
            self._layers[layer] = held
        for tensor, new in zip(held, (keys, values), strict=True):
            tensor.flatten(0, 1).index_copy_(0, places, new)
        return held


class _Group(NamedTuple):
    """Requests with about the same number of tokens in this step, as rows of one kernel call.

    Rows are the cache's slots `first` to `first + rows`, which costs nothing, or those in `select`, which copies them.
    Padded places see position 0 of their slot and are thrown away.
    """

    first: int
    rows: int
    select: Tensor | None
    tokens: Tensor | None
    """`[rows, count]` index into the step's tokens. None: they are the rows, one each, in order."""
    positions: Tensor
    """`[rows, count]`."""
    length: int
    """Longest context."""
    kept: Tensor | None
    """Index of the places that are not padding. None: none is."""
    targets: Tensor | None
    """Where in the step's tokens those go. None where `tokens` is."""


class StepPlan:
    """What one forward computes: which tokens stand where. Built anew for every step.

    Args:
        chunks: the step's requests, by ascending slot.
        cache: has room for them.
        device: where the model is.
    """

    def __init__(self, chunks: Sequence[Chunk], cache: KVCache, device: torch.device) -> None:
        self.cache = cache
        self._device = device
        self._biases: dict[tuple[int, int | None, int], Tensor] = {}
        positions = [p for c in chunks for p in range(c.start, c.start + c.length)]
        places = [c.slot * cache.capacity + p for c in chunks for p in range(c.start, c.start + c.length)]
        both = torch.tensor([positions, places], device=device)
        self.position_ids = both[:1]
        self.places = both[1]
        offsets, total = [], 0
        for chunk in chunks:
            offsets.append(total)
            total += chunk.length
        self.last = [o + c.length - 1 for o, c in zip(offsets, chunks, strict=True)]
        """Index of each chunk's last token among the step's tokens."""
        if total == len(chunks) and chunks[-1].slot - chunks[0].slot == total - 1:
            length = max(positions) + 1
            self.groups = [_Group(chunks[0].slot, total, None, None, both[0, :, None], length, None, None)]
            return
        classes: dict[int, list[tuple[Chunk, int]]] = {}
        for chunk, offset in zip(chunks, offsets, strict=True):
            classes.setdefault(chunk.length.bit_length(), []).append((chunk, offset))
        self.groups = [self._group(members) for members in classes.values()]

    def bias(self, group: _Group, window: int | None, query_groups: int, dtype: torch.dtype) -> Tensor:
        """What is added to a group's attention scores, `[rows, 1, query_groups * count, length]`: 0 or -inf."""
        key = (id(group), window, query_groups)
        if key not in self._biases:
            seen = torch.arange(group.length, device=self._device)
            positions = group.positions.unsqueeze(-1)
            hidden = seen > positions
            if window is not None:
                hidden |= seen <= positions - window
            bias = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, float("-inf"))
            if group.positions.shape[1] > 1 and query_groups > 1:
                bias = bias.repeat(1, query_groups, 1)
            self._biases[key] = bias.unsqueeze(1)
        return self._biases[key]

    def _group(self, members: list[tuple[Chunk, int]]) -> _Group:
        count = max(chunk.length for chunk, _ in members)
        first, last = members[0][0].slot, members[-1][0].slot
        span = last - first + 1
        # A gap in a run of slots costs a row of attention that nobody reads; leaving it out costs a copy of the others.
        in_place = span == len(members) or (count == 1 and span <= 2 * len(members))
        rows = span if in_place else len(members)
        tokens = [[0] * count for _ in range(rows)]
        positions = [[0] * count for _ in range(rows)]
        kept: list[int] = []
        targets: list[int] = []
        for i, (chunk, offset) in enumerate(members):
            row = chunk.slot - first if in_place else i
            tokens[row][: chunk.length] = range(offset, offset + chunk.length)
            positions[row][: chunk.length] = range(chunk.start, chunk.start + chunk.length)
            kept += range(row * count, row * count + chunk.length)
            targets += range(offset, offset + chunk.length)
        both = torch.tensor([tokens, positions], device=self._device)
        marks = torch.tensor([kept, targets], device=self._device)
        select = None if in_place else torch.tensor([chunk.slot for chunk, _ in members], device=self._device)
        length = max(chunk.start + chunk.length for chunk, _ in members)
        padded = len(kept) < rows * count
        return _Group(first, rows, select, both[0], both[1], length, marks[0] if padded else None, marks[1])


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: StepPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attention of a step's tokens over their slots; the signature is that of transformers' attention functions.

    Args:
        module: the layer's attention module; its `layer_idx` names the layer.
        query: `[1, heads, tokens, dim]`, rotated already, as `key` is.
        key: `[1, key_value_heads, tokens, dim]`.
        value: `[1, key_value_heads, tokens, value_dim]`.
        attention_mask: not used; the plan knows who sees whom.
        plan: the step.
        scaling: factor on the scores.
        sliding_window: how far back this layer looks.
        extra: what else the model passes on; what would change the result is refused.

    Returns:
        `[1, tokens, heads, value_dim]`.

    Raises:
        ConfigError: the model needs more than scaled dot products.
    """
    refuse_unsupported(module, extra)
    layer: int = module.layer_idx  # type: ignore[assignment]  # nn.Module says Tensor | Module of any attribute
    keys, values = plan.cache.store(layer, plan.places, key[0].transpose(0, 1), value[0].transpose(0, 1))
    queries = query[0].transpose(0, 1)
    if len(plan.groups) == 1 and plan.groups[0].tokens is None:
        return _attend(plan, plan.groups[0], queries, keys, values, scaling, sliding_window).unsqueeze(0), None
    out = queries.new_empty(*queries.shape[:2], values.shape[-1])
    for group in plan.groups:
        assert group.tokens is not None
        result = _attend(plan, group, queries[group.tokens.flatten()], keys, values, scaling, sliding_window)
        assert group.targets is not None
        out.index_copy_(0, group.targets, result if group.kept is None else result[group.kept])
    return out.unsqueeze(0), None


def refuse_unsupported(module: nn.Module, extra: Mapping[str, Any]) -> None:
    """Refuse what plain scaled dot products, this module's and the learner's, leave out.

    Args:
        module: a layer's attention module.
        extra: what the model passes on to its attention beyond the arguments that are honoured.

    Raises:
        ConfigError: the model needs more.
    """
    for name in _UNSUPPORTED:
        if extra.get(name) is not None:
            raise ConfigError(f"its {type(module).__name__} needs {name!r}, which Moonmill's attention cannot do")


def _attend(
    plan: StepPlan,
    group: _Group,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """One kernel call: `[rows * count, heads, dim]` to `[rows * count, heads, value_dim]`."""
    rows, length = group.rows, group.length
    count = group.positions.shape[1]
    if group.select is None:
        keys, values = (t[group.first : group.first + rows, :length] for t in (keys, values))
    else:
        keys, values = (t[:, :length].index_select(0, group.select) for t in (keys, values))
    shared = keys.shape[2]
    ratio = queries.shape[1] // shared
    # Heads that share keys become further queries of one head, so that keys are never repeated.
    q = queries.reshape(rows, count, shared, ratio, -1).permute(0, 2, 3, 1, 4).reshape(rows, shared, ratio * count, -1)
    out = scaled_dot_product_attention(
        q,
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=plan.bias(group, window, ratio, q.dtype),
        scale=scaling,
    )
    out = out.reshape(rows, shared, ratio, count, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * count, shared * ratio, -1)


AttentionInterface.register(IMPLEMENTATION, slot_attention)
