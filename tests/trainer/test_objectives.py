"""Every objective with every correction and normalisation, against a slow loop, and what must hold for all of them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from moonmill.algorithm_config import (
    CispoConfig,
    CriticConfig,
    DecoupledPpoConfig,
    DisConfig,
    GaeConfig,
    GspoConfig,
    IcepopConfig,
    NoCorrectionConfig,
    PpoClipConfig,
    ReinforceConfig,
    TisConfig,
)
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm, problem, tag
from moonmill.trainer.algorithms.normalization import token_weights
from moonmill.trainer.algorithms.objectives import (
    ActionTokens,
    Correction,
    Objective,
    at_bound,
    needs_proximal,
    objective_loss,
)

OBJECTIVES: list[Objective] = [
    DisConfig(),
    PpoClipConfig(high=0.28),
    PpoClipConfig(dual=1.5),
    CispoConfig(high=0.5),
    CispoConfig(low=0.4, high=0.5),
    GspoConfig(low=0.1, high=0.15),
    DecoupledPpoConfig(),
    DecoupledPpoConfig(proximal="interpolated"),
    ReinforceConfig(),
]
CORRECTIONS: list[Correction] = [
    NoCorrectionConfig(),
    TisConfig(cap=1.3),
    TisConfig(level="sequence", cap=1.3),
    IcepopConfig(low=0.7, high=1.4),
    IcepopConfig(level="sequence", low=0.5, high=2.0),
]
PAIRS = [
    (objective, correction)
    for objective, correction in product(OBJECTIVES, CORRECTIONS)
    if problem(ResolvedAlgorithm(GaeConfig(), objective, CriticConfig(), correction)) is None
]
NORMALIZATIONS = ["token", "sequence", "constant"]
VERSION = 5
of_each_pair = pytest.mark.parametrize(
    ("objective", "correction"), PAIRS, ids=[f"{i}-{tag(o)}-{tag(c)}" for i, (o, c) in enumerate(PAIRS)]
)


@st.composite
def rollouts(draw: st.DrawFn, *, fresh: bool = False, advantage: float | None = None) -> list[ActionTokens]:
    """Some rollouts with their action tokens, in float64: the policies differ, and versions with them."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    made = []
    for length in lengths:
        behaviour, to_proximal, to_policy, advantages = torch.randn(4, length, generator=noise, dtype=torch.float64)
        behaviour = -behaviour.abs() - 0.1
        proximal = behaviour + (0.0 if fresh else 0.3) * to_proximal
        versions = VERSION - torch.randint(4, (length,), generator=noise) * (not fresh)
        logprobs = proximal + (0.0 if fresh else 0.15) * to_policy
        given = advantages if advantage is None else torch.full_like(advantages, advantage)
        made.append(ActionTokens(logprobs, behaviour, proximal, given, versions, VERSION, [length]))
    return made


def joined(parts: Sequence[ActionTokens]) -> ActionTokens:
    """One micro-batch of several rollouts, with a gradient to come."""
    names = ("logprobs", "behaviour", "proximal", "advantages", "versions")
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    columns["logprobs"] = columns["logprobs"].detach().clone().requires_grad_()
    return ActionTokens(**columns, version=VERSION, lengths=[n for part in parts for n in part.lengths])


def losses(objective: Objective, correction: Correction, tokens: ActionTokens) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient with respect to logπ_θ, and mask of each token."""
    loss, kept = objective_loss(objective, correction, tokens)
    (gradient,) = torch.autograd.grad(loss.sum(), tokens.logprobs)
    return loss.detach(), gradient, kept


def batch_gradient(
    objective: Objective, correction: Correction, kind: str, cut: Sequence[Sequence[ActionTokens]]
) -> list[Tensor]:
    """The gradient of a batch's loss, with respect to each rollout's logπ_θ, accumulated over micro-batches."""
    lengths = [n for parts in cut for part in parts for n in part.lengths]
    found = []
    for parts in cut:
        tokens = joined(parts)
        loss, _ = objective_loss(objective, correction, tokens)
        weights = token_weights(
            tokens.lengths, tokens.lengths, kind, tokens=sum(lengths), rollouts=len(lengths), constant=9
        )
        (gradient,) = torch.autograd.grad((loss * weights).sum(), tokens.logprobs)
        found += torch.split(gradient, list(tokens.lengths))
    return found


@of_each_pair
@given(parts=rollouts())
@settings(max_examples=25)
def test_loss_gradient_and_mask_are_those_of_the_formula(
    objective: Objective, correction: Correction, parts: list[ActionTokens]
):
    loss, gradient, kept = losses(objective, correction, joined(parts))
    expected = [row for part in parts for row in slow(objective, correction, part)]
    assert loss.tolist() == pytest.approx([row[0] for row in expected], abs=1e-9)
    assert gradient.tolist() == pytest.approx([row[1] for row in expected], abs=1e-9)
    assert kept.tolist() == [row[2] for row in expected]


@of_each_pair
@given(parts=rollouts(), order=st.randoms(use_true_random=False), kind=st.sampled_from(NORMALIZATIONS))
@settings(max_examples=25)
def test_permuting_and_repacking_a_batch_changes_nothing(
    objective: Objective, correction: Correction, parts: list[ActionTokens], order, kind: str
):
    whole = batch_gradient(objective, correction, kind, [parts])
    places = list(range(len(parts)))
    order.shuffle(places)
    cut = order.randint(0, len(parts))
    pieces = [piece for piece in (places[:cut], places[cut:]) if piece]
    got = batch_gradient(objective, correction, kind, [[parts[i] for i in piece] for piece in pieces])
    for place, gradient in zip(places, got, strict=True):
        assert gradient.tolist() == pytest.approx(whole[place].tolist(), abs=1e-9)


@of_each_pair
@given(parts=rollouts(fresh=True))
@settings(max_examples=8)
def test_without_staleness_every_objective_is_the_policy_gradient(
    objective: Objective, correction: Correction, parts: list[ActionTokens]
):
    tokens = joined(parts)
    _, gradient, kept = losses(objective, correction, tokens)
    assert gradient.tolist() == pytest.approx((-tokens.advantages).tolist(), abs=1e-12)
    assert kept.all()


@of_each_pair
@pytest.mark.parametrize("far", [40.0, 199.0, 1e4, -40.0, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_rollout_whose_policies_are_far_apart_costs_the_others_nothing(
    objective: Objective, correction: Correction, far: float, advantage: float
):
    """In float32, in which the learner computes: that no norm of gradients overflows, squares tell."""
    # Sampled, before the updates, being trained: far apart at the first step, at the second, and at both.
    usual = torch.tensor([[-1.0, -0.5], [-1.1, -0.5], [-1.0, -0.6]])
    apart = torch.tensor([[0.0, 0.0, 0.0], [far, 0.0, far], [far, far, 2 * far]])
    behaviour, proximal, logprobs = torch.cat([usual, apart - 1.0], dim=1)
    advantages, versions = torch.full((5,), advantage), torch.full((5,), VERSION - 3)
    mixed = ActionTokens(logprobs.requires_grad_(), behaviour, proximal, advantages, versions, VERSION, [2, 1, 1, 1])
    loss, gradient, kept = losses(objective, correction, mixed)
    assert loss.isfinite().all()
    assert gradient.square().sum().isfinite()
    assert not gradient[~kept].any()
    alone = ActionTokens(
        logprobs[:2].detach().requires_grad_(), behaviour[:2], proximal[:2], advantages[:2], versions[:2], VERSION, [2]
    )
    for whole, part in zip((loss, gradient, kept), losses(objective, correction, alone), strict=True):
        assert torch.equal(whole[:2], part)


@given(parts=rollouts(fresh=True))
@settings(max_examples=25)
def test_dis_with_ratio_one_is_reinforce(parts: list[ActionTokens]):
    one = losses(DisConfig(), NoCorrectionConfig(), joined(parts))
    other = losses(ReinforceConfig(), NoCorrectionConfig(), joined(parts))
    assert [x.tolist() for x in one] == [x.tolist() for x in other]


@given(parts=rollouts())
@settings(max_examples=25)
def test_dis_is_reinforce_with_a_mask_of_the_same_band(parts: list[ActionTokens]):
    """Within the band and off its ends, where one is strict and the other is not."""
    one = losses(DisConfig(low=0.3, high=0.4), NoCorrectionConfig(), joined(parts))
    other = losses(ReinforceConfig(), IcepopConfig(low=0.7, high=1.4), joined(parts))
    for x, y in zip(one, other, strict=True):
        assert x.tolist() == pytest.approx(y.tolist())


@of_each_pair
@given(parts=rollouts())
@settings(max_examples=8)
def test_the_learners_own_policy_matters_only_where_it_is_said_to(
    objective: Objective, correction: Correction, parts: list[ActionTokens]
):
    one = losses(objective, correction, joined(parts))[0]
    other = losses(objective, correction, joined([replace(p, proximal=p.proximal - 0.05) for p in parts]))[0]
    if not needs_proximal(objective, correction):
        assert torch.equal(one, other)


def test_the_learners_own_policy_is_needed_by_corrections_and_the_exact_proximal_policy():
    needed = {(tag(o), tag(c)) for o, c in PAIRS if needs_proximal(o, c) and o != OBJECTIVES[7]}
    ratios = ("ppo_clip", "cispo", "gspo")
    assert needed == {(o, c) for o in ratios for c in ("tis", "icepop")} | {
        ("decoupled_ppo", c) for c in ("none", "tis", "icepop")
    }
    assert not any(needs_proximal(OBJECTIVES[7], correction) for correction in CORRECTIONS)


def slow(objective: Objective, correction: Correction, part: ActionTokens) -> list[tuple[float, float, bool]]:
    """Loss, gradient and mask of each token of one rollout, with plain numbers and the formulas as they are written."""
    columns = (part.logprobs, part.behaviour, part.proximal, part.advantages, part.versions)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    corrected = not isinstance(correction, NoCorrectionConfig)
    olds = [prox if corrected else behave for _, behave, prox, _, _ in rows]
    learners = []
    for new, behave, prox, _, version in rows:
        if isinstance(objective, ReinforceConfig):
            prox = new
        if isinstance(objective, DecoupledPpoConfig) and objective.proximal == "interpolated":
            age = VERSION - version
            prox = behave + (max(age - 1, 0) / age if age else 0.0) * (new - behave)
        learners.append(prox)
    if isinstance(objective, DecoupledPpoConfig):
        olds = learners
    mean = sum(row[0] - old for row, old in zip(rows, olds, strict=True)) / len(rows)
    product_of_all = math.exp(sum(learner - row[1] for learner, row in zip(learners, rows, strict=True)))
    found = []
    for (new, behave, _, advantage, _), old, learner in zip(rows, olds, learners, strict=True):
        loss, gradient, kept = _objective(objective, new, behave, old, advantage, mean)
        ratio = math.exp(learner - behave)
        weight, counts = _weight(correction, ratio, product_of_all)
        if isinstance(objective, DecoupledPpoConfig) and not corrected:
            weight = ratio
        found.append((weight * loss, weight * gradient, kept and counts))
    return found


def _objective(
    objective: Objective, new: float, behave: float, old: float, advantage: float, mean: float
) -> tuple[float, float, bool]:
    ratio = math.exp(new - old)
    match objective:
        case DisConfig(low=low, high=high):
            ratio = math.exp(new - behave)
            if 1 - low < ratio < 1 + high:
                return -ratio * advantage * new, -ratio * advantage, True
            return 0.0, 0.0, False
        case CispoConfig(low=least, high=high):
            weight = min(ratio, 1 + high) if least is None else min(max(ratio, 1 - least), 1 + high)
            return -weight * advantage * new, -weight * advantage, True
        case ReinforceConfig():
            return -advantage * new, -advantage, True
        case GspoConfig(low=low, high=high):
            return _clipped(math.exp(mean), advantage, low, high, None)
        case PpoClipConfig(low=low, high=high, dual=dual):
            return _clipped(ratio, advantage, low, high, dual)
        case DecoupledPpoConfig(low=low, high=high):
            return _clipped(ratio, advantage, low, high, None)


def _clipped(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> tuple[float, float, bool]:
    if advantage > 0 and ratio > 1 + high:
        return -(1 + high) * advantage, 0.0, False
    if advantage < 0 and ratio < 1 - low:
        return -(1 - low) * advantage, 0.0, False
    if advantage < 0 and dual is not None and ratio > dual:
        return -dual * advantage, 0.0, False
    return -ratio * advantage, -ratio * advantage, True


def _weight(correction: Correction, own: float, product_of_all: float) -> tuple[float, bool]:
    match correction:
        case NoCorrectionConfig():
            return 1.0, True
        case TisConfig(level=level, cap=cap):
            return min(own if level == "token" else product_of_all, cap), True
        case IcepopConfig(level=level, low=low, high=high):
            ratio = own if level == "token" else product_of_all
            return (ratio, True) if low <= ratio <= high else (0.0, False)


def test_tokens_whose_weight_is_cut_off_are_told_of_cispo_and_tis_alone():
    ratios = torch.tensor([0.5, 1.0, 3.0, 10.0])
    behaviour = torch.full((4,), -3.0)
    learner = behaviour + ratios.log()
    tokens = ActionTokens(learner, behaviour, learner, torch.ones(4), torch.zeros(4), 1, [4])
    none, cap = NoCorrectionConfig(), TisConfig(level="token", cap=2.0)
    of_cispo = at_bound(CispoConfig(low=0.2, high=4.0), none, tokens)
    assert of_cispo is not None
    assert of_cispo.tolist() == [True, False, False, True]
    both = at_bound(CispoConfig(low=None, high=4.0), cap, tokens)  # The ratio of cispo is 1 throughout then.
    assert both is not None
    assert both.tolist() == [False, False, True, True]
    assert at_bound(ReinforceConfig(), none, tokens) is None
