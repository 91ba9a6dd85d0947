"""From logits to a token and its log-probability: pure functions that the engine and the learner share.

That they are shared is what makes the learner's log-probabilities comparable with the engine's at any temperature,
top-p and top-k: both are of the distribution the token was drawn from (vLLM's `processed_logprobs`).
"""

import random

import torch
from torch import Tensor

Rows = Tensor | float
"""One value for every row, or a tensor `[*]` with one for each."""

_BELOW_ONE = 1.0 - 2.0**-50
"""Keeps a draw strictly inside the cumulative distribution, where rounding could put it on its end."""


def processed_logprobs(
    logits: Tensor,
    temperature: Rows = 1.0,
    top_p: Rows = 1.0,
    top_k: Rows = 0,
    keep: Tensor | None = None,
) -> Tensor:
    """Log-probabilities `[*, vocab]` after temperature, then top-k, then top-p, normalised over what remains.

    A token outside of the support gets -inf. Differentiable in `logits`; the support is taken as given.

    Args:
        logits: `[*, vocab]`, of any float type; the result is float32.
        temperature: 0 is greedy, where, as vLLM reports it, the untempered and untruncated log-probabilities are given.
        top_p: the smallest set of likeliest tokens with at least this probability remains; 1 keeps all.
        top_k: the `top_k` likeliest tokens remain, with those tied to the last; 0 keeps all.
        keep: `[*]`, token ids that stay in the support whatever their probability. A learner whose weights have moved
            on needs it: a token that was sampled is not to have probability 0.
    """
    logits = logits.float()
    greedy = _as_rows(temperature, logits) == 0
    scaled = logits
    if not _always(temperature, 1.0):
        scaled = logits / torch.where(greedy, torch.ones_like(logits[..., :1]), _as_rows(temperature, logits))
    if _always(top_p, 1.0) and _always(top_k, 0):
        return scaled.log_softmax(-1)
    with torch.no_grad():
        outside = _beyond_top_k(scaled.detach(), top_k)
        if not _always(top_p, 1.0):
            outside |= _beyond_top_p(scaled.detach().masked_fill(outside, float("-inf")), _as_rows(top_p, logits))
        outside &= ~greedy
        if keep is not None:
            outside.scatter_(-1, keep.unsqueeze(-1), False)
    return scaled.masked_fill(outside, float("-inf")).log_softmax(-1)


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """The token of each row, by inverting the cumulative distribution.

    A row's token depends on its own log-probabilities and its own uniform alone, never on what else is in the batch.

    Args:
        logprobs: `[rows, vocab]`, normalised; -inf is never drawn.
        uniforms: `[rows]` in [0, 1), float64.
    """
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    target = cumulative[:, -1] * (uniforms * _BELOW_ONE)
    return (cumulative <= target.unsqueeze(-1)).sum(-1)


def generator(seed: int | None) -> random.Random:
    """The stream of uniforms of one request. Without a seed it is different every time."""
    # Python's own: a torch generator costs fifty times as much for one number.
    return random.Random(seed)


def _beyond_top_k(scaled: Tensor, top_k: Rows) -> Tensor:
    """True for tokens less likely than the `top_k` likeliest."""
    vocab = scaled.shape[-1]
    most = int(top_k.max().item() if isinstance(top_k, Tensor) else top_k)
    if most <= 0:
        return torch.zeros_like(scaled, dtype=torch.bool)
    k = _as_rows(top_k, scaled).long().expand(*scaled.shape[:-1], 1)
    likeliest = scaled.topk(min(most, vocab), -1).values
    last = likeliest.gather(-1, (k - 1).clamp(0, likeliest.shape[-1] - 1))
    return (scaled < last) & (k > 0)


def _beyond_top_p(scaled: Tensor, top_p: Tensor) -> Tensor:
    """True for tokens that likelier ones leave no room for: those before them reach `top_p` already."""
    ordered, order = scaled.sort(-1, descending=True)
    probabilities = ordered.softmax(-1)
    # Where top_p is 1, rounding could make them reach it: nothing falls out then.
    beyond = (probabilities.cumsum(-1) - probabilities >= top_p) & (top_p < 1)
    # The likeliest stays, whatever is left of it after rounding.
    beyond[..., 0] = False
    return torch.zeros_like(beyond).scatter_(-1, order, beyond)


def _as_rows(value: Rows, like: Tensor) -> Tensor:
    """`[*, 1]`, or a scalar tensor."""
    if isinstance(value, Tensor):
        return value.to(like.device).unsqueeze(-1)
    return torch.tensor(value, device=like.device)


def _always(value: Rows, neutral: float) -> bool:
    """Whether a parameter is known to change nothing. A tensor is not looked at: that would wait for the GPU."""
    return not isinstance(value, Tensor) and value == neutral
