"""What is measured of a policy update: ratios, masked share, entropy, and how well learner and engine agree."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenStats:
    """Of the action tokens of one micro-batch, all `[action tokens]`."""

    logprobs: Tensor
    behaviour: Tensor
    kept: Tensor
    """True where the objective lets the token count."""
    entropy: Tensor
    loss: Tensor
    fresh: Tensor
    """True where the token was sampled under the very weights that are being updated."""
    reference: Tensor | None = None
    """Log-probabilities under the initial policy, where they were asked for."""
    at_bound: Tensor | None = None
    """True where the token's weight was cut off, where the algorithm cuts weights off."""


def policy_metrics(stats: Sequence[TokenStats]) -> dict[str, float]:
    """One number each over all action tokens of a batch; where it had several updates, over those of all of them.

    `mismatch_*` is the difference between the learner's and the engine's log-probabilities of tokens that both computed
    with the same weights: what is not numerics there is a bug. `logprob_diff_*` is over all tokens, staleness included.
    """
    logprobs, behaviour, kept, entropy, loss, fresh = (
        torch.cat([getattr(s, name) for s in stats]).double()
        for name in ("logprobs", "behaviour", "kept", "entropy", "loss", "fresh")
    )
    log_ratio = logprobs - behaviour
    ratio, difference = log_ratio.exp(), log_ratio.abs()
    metrics = {
        "policy_loss": loss.mean(),
        "masked_share": 1 - kept.mean(),
        "ratio_mean": ratio.mean(),
        "ratio_std": ratio.std(correction=0),
        "ratio_min": ratio.min(),
        "ratio_max": ratio.max(),
        # Kish's: 1 where all ratios are the same, 1/n where one of n outweighs the rest.
        "ess": ratio.sum().square() / (len(ratio) * ratio.square().sum()),
        "logprob_diff_mean": difference.mean(),
        "logprob_diff_max": difference.max(),
        "entropy": entropy.mean(),
        # Of the rollout policy to the current one, by the estimator r − 1 − log r: never negative, of little variance.
        "kl": (ratio - 1 - log_ratio).mean(),
    }
    if references := [s.reference for s in stats if s.reference is not None]:
        behind = torch.cat(references).double() - logprobs
        metrics["kl_reference"] = (behind.exp() - 1 - behind).mean()
    if bounds := [s.at_bound for s in stats if s.at_bound is not None]:
        metrics["at_bound_share"] = torch.cat(bounds).double().mean()
    if fresh.any():
        metrics["mismatch_mean"] = difference[fresh > 0].mean()
        metrics["mismatch_max"] = difference[fresh > 0].max()
    return {name: float(value) for name, value in metrics.items()}
