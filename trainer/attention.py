"""Attention over rollouts that lie end to end: each token sees its own rollout up to itself, and nothing else.

A model's own forward runs over one row of tokens; all but attention treats them one by one. Attention is replaced,
through transformers' `AttentionInterface`, by `packed_attention`: rollouts of similar length become the rows of one
causal kernel call. Padding is on the right, where causality alone hides it from the real tokens, so no mask is built;
only these calls are padded, by at most half, and what they compute in the padding is thrown away.

Measured on one CPU core, 64 rollouts of 40-120 tokens, forward and backward of one layer: 19 ms with rows within a
factor of 1.5 (3 calls), 25 ms as a single padded call, 27 ms with a call for each rollout. On CUDA with 16-bit weights
flash-attention's variable-length kernel does the same without any padding, where it is installed.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils import is_flash_attn_2_available

from moonmill.agents.engine.attention import refuse_unsupported
from moonmill.blame import error_of
from moonmill.errors import ConfigError

PACKED = "moonmill_packed"
FLASH = "flash_attention_2"
UNSLOTH = "unsloth"
"""Unsloth's own, in the families that it has rewritten."""
_WIDEST = 1.5
"""Longest by shortest rollout in one kernel call."""
_MIXING = 1e-3
"""Share of the largest logit. Rounding stays far below; a rollout that sees its neighbour goes far above."""
_MIXING_8BIT = 0.05
"""The same where outliers are taken out of products in 8 bits: which columns have some depends on all rows together."""


class _Rows(NamedTuple):
    """Rollouts of one kernel call."""

    tokens: Tensor
    """`[rows * length]` index into the group's own tokens; padding repeats a rollout's last token."""
    kept: Tensor
    """Index of what is not padding."""
    rows: int
    length: int


class PackedPlan:
    """Which tokens belong together. Made once for a micro-batch, used by all layers.

    Args:
        cu_seqlens: `[rollouts + 1]`, where rollouts begin and end; the nearer in length neighbours are, the better.
    """

    def __init__(self, cu_seqlens: Tensor) -> None:
        self.cu_seqlens = cu_seqlens
        bounds = cu_seqlens.tolist()
        self.lengths = [end - begin for begin, end in pairwise(bounds)]
        self.groups: list[_Rows] = []
        start = 0
        for end in range(1, len(self.lengths) + 1):
            widest = max(self.lengths[start : end + 1]) / min(self.lengths[start : end + 1])
            if end == len(self.lengths) or widest > _WIDEST:
                begins = [begin - bounds[start] for begin in bounds[start:end]]
                self.groups.append(self._rows(begins, self.lengths[start:end]))
                start = end
        self.sizes = [len(group.kept) for group in self.groups]
        """Tokens of each group; they follow one another in the row."""

    def kwargs(self, implementation: str) -> dict[str, Any]:
        """What a model's forward is to pass on to its attention."""
        if implementation == PACKED:
            return {"plan": self}
        if implementation == UNSLOTH:
            return {"packed_seq_lengths": torch.tensor(self.lengths, dtype=torch.int32)}
        longest = max(self.lengths)
        return {
            "plan": self,  # for the layers that are no attention
            "cu_seq_lens_q": self.cu_seqlens,
            "cu_seq_lens_k": self.cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    def _rows(self, begins: Sequence[int], lengths: Sequence[int]) -> _Rows:
        device = self.cu_seqlens.device
        begin = torch.tensor(begins, device=device).unsqueeze(1)
        length = torch.tensor(lengths, device=device).unsqueeze(1)
        place = torch.arange(max(lengths), device=device).unsqueeze(0)
        kept = (place < length).flatten().nonzero().squeeze(1)
        return _Rows((begin + torch.minimum(place, length - 1)).flatten(), kept, len(lengths), max(lengths))


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
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attention of each rollout's tokens over that rollout.

    Arguments, result and refusals are those of `moonmill.agents.engine.attention.slot_attention`; the plan is the
    micro-batch's.
    """
    refuse_unsupported(module, extra)
    # Split, since that is undone by one concatenation: a gradient that is indexed out of the whole row for each group
    # would be as many rows full of zeros, to be added up.
    q, k, v = (torch.split(t[0].transpose(0, 1), plan.sizes) for t in (query, key, value))
    parts = [
        _attend(group, *own, scaling, sliding_window)
        for group, own in zip(plan.groups, zip(q, k, v, strict=True), strict=True)
    ]
    return torch.cat(parts).unsqueeze(0), None


def choose_implementation(device: torch.device, dtype: torch.dtype) -> str:
    """The attention to load a model with: flash-attention's where it can run, else ours."""
    if device.type == "cuda" and dtype is not torch.float32 and is_flash_attn_2_available():
        return FLASH
    return PACKED


def implementation_of(model: PreTrainedModel) -> str:
    """The attention a model was loaded with."""
    if getattr(model, "_unsloth_fast_path", False):
        return UNSLOTH
    name: str = model.config._attn_implementation
    return name


@torch.no_grad()
def refuse_mixing(model: PreTrainedModel) -> None:
    """Make sure that rollouts in one row do not see each other in this model, as they would where a layer that is no
    attention, and that `moonmill.trainer.mixers` does not reach, carries something from token to token; and that no
    token sees those after it, padding among them.

    Raises:
        ConfigError: they do, or the model cannot be run over such a row.
    """
    name = type(model).__name__
    if "chunked_attention" in (getattr(model.config.get_text_config(), "layer_types", None) or ()):
        raise ConfigError(f"model.path: {name} attends in chunks, which the learner cannot do")
    plan = PackedPlan(torch.tensor([0, 3, 7], dtype=torch.int32, device=model.device))
    try:
        logits = [
            model(
                input_ids=torch.tensor([[*first, 1, 2, 3, last]], device=model.device),
                position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3]], device=model.device),
                use_cache=False,
                **plan.kwargs(implementation_of(model)),
            ).logits[0, 3:6]
            for *first, last in ((1, 2, 3, 1), (3, 1, 1, 1), (1, 2, 3, 2))
        ]
    except (ConfigError, torch.OutOfMemoryError):
        raise
    except Exception as e:  # theirs
        raise ConfigError(
            f"model.path: {name} cannot be run over rollouts that lie end to end, as the learner does: {error_of(e)}"
        ) from e
    allowed = _MIXING_8BIT if getattr(model, "is_loaded_in_8bit", False) else _MIXING
    other_first, other_last = ((changed - logits[0]).abs().max() / logits[0].abs().max() for changed in logits[1:])
    if other_first > allowed:
        raise ConfigError(
            f"model.path: {name} has layers that carry more than attention does from token to token, so that rollouts "
            "in one row would see each other: the learner cannot train it"
        )
    if other_last > allowed:
        raise ConfigError(
            f"model.path: in {name} tokens see those after them, so it is no causal language model: the learner cannot "
            "train it"
        )


def _attend(
    group: _Rows, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """One kernel call: the group's tokens in their order, `[tokens, heads, value_dim]`."""
    q, k, v = (
        t.index_select(0, group.tokens).view(group.rows, group.length, *t.shape[1:]).transpose(1, 2)
        for t in (query, key, value)
    )
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    mask = None
    if window is not None and window < group.length:
        mask = torch.ones(group.length, group.length, dtype=torch.bool, device=q.device).tril().triu(1 - window)
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, group.kept)


AttentionInterface.register(PACKED, packed_attention)
