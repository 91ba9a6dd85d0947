"""Rollouts with branches: each context a sequence of its own, each sampled token trained once, each rollout one."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from moonmill.algorithm_config import CriticConfig, DisConfig, GroupZscoreConfig, GspoConfig
from moonmill.trainer.advantages import OutcomeAdvantages
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm
from moonmill.trainer.attention import PACKED
from moonmill.trainer.buffer import unfit
from moonmill.trainer.learner import Learner
from moonmill.trainer.models import Packed
from moonmill.trainer.packing import pack
from moonmill.types import Action, Observation, Rollout, Segment
from tests.trainer.conftest import MakeConfig, action, observation, rollout, sampled
from tests.trainer.test_learner import difference
from tests.trainer.test_objectives import NORMALIZATIONS
from tests.trainer.updates import CPU, STILL, VERSION, Updates, stale

REWARDS = torch.tensor([0.7, -0.4, 1.1, -1.3])


def gradients(updates: Updates, rollouts: Sequence[Rollout], each: Tensor, budget: int = 10_000) -> dict[str, Tensor]:
    """With an advantage for each rollout."""
    batch = [Packed(m, PACKED, CPU) for m in pack(rollouts, budget)]
    given = [each[list(b.rollouts)].repeat_interleave(torch.tensor(b.action_lengths)) for b in (p.batch for p in batch)]
    updates.gradients = {}
    updates.update.update(batch, given, VERSION, {})
    return updates.gradients


def halved(whole: Rollout) -> Rollout:
    """The same, as if its program had kept its history in another place: the first turn is context in a branch."""
    first, one, second, other = whole.segments
    shared = Observation(first.tokens + one.tokens + second.tokens)
    return msgspec.structs.replace(whole, segments=(first, one), branches=((shared, other),))


def joined(one: Rollout, other: Rollout) -> Rollout:
    return msgspec.structs.replace(one, branches=(other.segments,))


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_how_a_rollout_falls_into_branches_changes_no_gradient(kind, make_config: MakeConfig, model_path: Path):
    rollouts = stale(sampled(model_path, 3, 4))
    algorithm = ResolvedAlgorithm(GroupZscoreConfig(), DisConfig(), normalization=kind, normalization_constant=20)
    updates = Updates(msgspec.structs.replace(algorithm, staleness_scaling=0.5), make_config(learner=STILL))
    whole = gradients(updates, rollouts, REWARDS)
    assert max(float(g.abs().max()) for g in whole.values()) > 0.01
    parted = [halved(r) if i % 2 else r for i, r in enumerate(rollouts)]
    assert difference(gradients(updates, parted, REWARDS), whole) < 1e-5
    order = [2, 0, 3, 1]
    again = gradients(updates, [parted[i] for i in order], REWARDS[order], budget=60)
    assert difference(again, whole) < 1e-5


@pytest.mark.parametrize("objective", [DisConfig(), GspoConfig()])
def test_branches_are_trained_as_single_sequences_are(objective, make_config: MakeConfig, model_path: Path):
    singles = stale(sampled(model_path, 4, 8))
    rollouts = [joined(*singles[i : i + 2]) for i in range(0, 8, 2)]
    updates = Updates(
        ResolvedAlgorithm(GroupZscoreConfig(), objective, normalization="token"), make_config(learner=STILL)
    )
    apart = gradients(updates, singles, REWARDS.repeat_interleave(2))
    assert difference(gradients(updates, rollouts, REWARDS), apart) < 1e-5
    assert difference(gradients(updates, rollouts, REWARDS, budget=40), apart) < 1e-5


def test_a_rollout_is_one_however_many_branches_it_has():
    branched = rollout(observation(1), action(2, version=4), reward=1.0, turn_rewards=(0.5,), group="g")
    branched = msgspec.structs.replace(branched, branches=((observation(1, 2, 3), action(4, 5, version=2)),))
    single = rollout(observation(1), action(9, version=5), reward=0.0, group="g")
    (batch,) = pack([branched, single], budget=100)
    assert batch.rollouts == (0, 1, 0)
    assert batch.action_lengths == (1, 1, 2)
    assert batch.rollout_lengths == (3, 1, 3)
    assert batch.oldest.tolist() == [2, 5, 2]
    assert batch.rewards.tolist() == [1.0, 0.0, 0.0, 1.0]
    (advantages,) = OutcomeAdvantages(GroupZscoreConfig())([batch], [branched, single])
    assert advantages.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), 0.5**0.5, 0.5**0.5], abs=1e-3)
    assert (branched.action_tokens, branched.tokens, branched.oldest_version) == (3, 7, 2)


def test_a_branch_without_an_action_is_no_sequence():
    only: tuple[Segment, ...] = (observation(1, 2),)
    one = msgspec.structs.replace(rollout(observation(1), action(2)), branches=(only,))
    (batch,) = pack([one], budget=100)
    assert batch.rollouts == (0,)
    assert unfit(msgspec.structs.replace(one, segments=only)) == "no_actions"
    late = msgspec.structs.replace(one, segments=only, branches=((observation(1), action(2)),))
    assert unfit(late) is None
    assert pack([late], budget=100)[0].tokens.tolist() == [1, 2]


def test_all_branches_go_to_the_same_part_of_a_batch():
    one = msgspec.structs.replace(
        rollout(observation(1), action(2)), branches=((observation(*range(9)), Action((3,), (-1.0,), (0,))),)
    )
    batches = pack([one] * 4, budget=100, parts=2)
    assert [(set(b.rollouts), b.part) for b in batches] == [({0, 1}, 0), ({2, 3}, 1)]


def test_a_critic_learns_from_branches_too(make_config: MakeConfig, model_path: Path):
    rollouts = [halved(r) for r in sampled(model_path, 3, 8)]
    metrics = Learner(make_config(critic=CriticConfig(lr=1e-3, warmup_steps=0))).step(rollouts).metrics
    assert metrics["action_tokens"] == sum(r.action_tokens for r in rollouts)
    assert metrics["tokens"] == sum(r.tokens for r in rollouts)
