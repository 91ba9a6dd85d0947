"""The loss of each action token under an algorithm: its objective, corrected where it says so.

What the old policy of an objective is depends on the correction. Without one it is the policy that sampled, so that
the objective's own ratio bears staleness, numerics and the batch's updates together. With one, the objective's ratio is
that to the learner's policy before the batch's updates, as in the papers, and the correction's weight is the ratio of
that policy to the one that sampled. Apart from this:

- `dis` is its own correction: a mask of the ratio to the policy that sampled. It goes with `none` alone.
- `decoupled_ppo` has that weight as part of it; a correction truncates or masks it.
- `reinforce` has no ratio; its correction's is that of the policy being trained to the one that sampled.

What always holds: with one update from each batch and no staleness, all objectives have the gradient −Â·∇logπ_θ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from moonmill.algorithm_config import (
    CispoConfig,
    Correction,
    DecoupledPpoConfig,
    DisConfig,
    GspoConfig,
    IcepopConfig,
    NoCorrectionConfig,
    Objective,
    PpoClipConfig,
    ReinforceConfig,
    TisConfig,
)
from moonmill.trainer.algorithms.cispo import cispo
from moonmill.trainer.algorithms.corrections import icepop, of_level, tis
from moonmill.trainer.algorithms.decoupled_ppo import decoupled_ppo, interpolated_proximal
from moonmill.trainer.algorithms.dis import dis
from moonmill.trainer.algorithms.gspo import gspo
from moonmill.trainer.algorithms.ppo_clip import ppo_clip
from moonmill.trainer.algorithms.ratios import ratio_of
from moonmill.trainer.algorithms.reinforce import reinforce


@dataclass(frozen=True)
class ActionTokens:
    """The action tokens of some whole rollouts, which lie one after the other. Tensors are `[action tokens]`."""

    logprobs: Tensor
    """Under the policy being trained, with its gradient."""
    behaviour: Tensor
    """As they were sampled."""
    proximal: Tensor
    """Under the learner's policy before the batch's updates, without gradient."""
    advantages: Tensor
    versions: Tensor
    """The policy version that sampled each."""
    version: int
    """The policy's, before the batch's updates."""
    lengths: Sequence[int]
    """Action tokens of each rollout."""


def objective_loss(objective: Objective, correction: Correction, tokens: ActionTokens) -> tuple[Tensor, Tensor]:
    """Loss and mask of each action token, `[action tokens]` both; False in the mask has no effect on the update.

    Args:
        objective: the objective.
        correction: goes with it (`combinations`).
        tokens: what it is of.
    """
    corrected = not isinstance(correction, NoCorrectionConfig)
    new, advantages, lengths = tokens.logprobs, tokens.advantages, tokens.lengths
    old = tokens.proximal if corrected else tokens.behaviour
    learner = _learner(objective, tokens)
    match objective:
        case DisConfig(low=low, high=high):
            loss, kept = dis(new, tokens.behaviour, advantages, low=low, high=high)
        case PpoClipConfig(low=low, high=high, dual=dual):
            loss, kept = ppo_clip(new, old, advantages, low=low, high=high, dual=dual)
        case CispoConfig(low=least, high=high):
            loss, kept = cispo(new, old, advantages, low=least, high=high)
        case GspoConfig(low=low, high=high):
            loss, kept = gspo(new, old, advantages, lengths, low=low, high=high)
        case DecoupledPpoConfig(low=low, high=high):
            if corrected:
                loss, kept = ppo_clip(new, learner, advantages, low=low, high=high)
            else:
                loss, kept = decoupled_ppo(new, tokens.behaviour, advantages, learner, low=low, high=high)
        case ReinforceConfig():
            loss, kept = reinforce(new, advantages)
    weighted = _weights(correction, learner - tokens.behaviour, lengths)
    if weighted is None:
        return loss, kept
    weights, counts = weighted
    return weights * loss, kept & counts


def at_bound(objective: Objective, correction: Correction, tokens: ActionTokens) -> Tensor | None:
    """Where a token's weight is cut off, `[action tokens]`: that of `cispo`, or of `tis`. None of others."""
    found: Tensor | None = None
    if isinstance(objective, CispoConfig):
        old = tokens.behaviour if isinstance(correction, NoCorrectionConfig) else tokens.proximal
        ratio = ratio_of(tokens.logprobs.detach() - old)
        found = (ratio > 1 + objective.high) | (ratio < (0.0 if objective.low is None else 1 - objective.low))
    if isinstance(correction, TisConfig):
        log_ratio = _learner(objective, tokens) - tokens.behaviour
        capped = of_level(log_ratio, tokens.lengths, correction.level) > math.log(correction.cap)
        found = capped if found is None else found | capped
    return found


def needs_proximal(objective: Objective, correction: Correction) -> bool:
    """Whether the loss looks at `ActionTokens.proximal`."""
    if isinstance(objective, DecoupledPpoConfig):
        return objective.proximal == "exact"
    return not isinstance(objective, DisConfig | ReinforceConfig) and not isinstance(correction, NoCorrectionConfig)


def _learner(objective: Objective, tokens: ActionTokens) -> Tensor:
    """Log-probabilities under the policy that a correction leads to."""
    match objective:
        case DecoupledPpoConfig(proximal="interpolated"):
            return interpolated_proximal(tokens.logprobs, tokens.behaviour, tokens.versions, tokens.version)
        case ReinforceConfig():
            return tokens.logprobs.detach()
        case _:
            return tokens.proximal


def _weights(correction: Correction, log_ratio: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    match correction:
        case TisConfig(level=level, cap=cap):
            return tis(log_ratio, lengths, level=level, cap=cap)
        case IcepopConfig(level=level, low=low, high=high):
            return icepop(log_ratio, lengths, level=level, low=low, high=high)
        case NoCorrectionConfig():
            return None
