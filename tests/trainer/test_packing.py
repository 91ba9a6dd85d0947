"""Rollouts end to end: every token once and untouched, nothing padded, nothing split."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moonmill.errors import RunError
from moonmill.trainer.packing import pack
from moonmill.types import Action, Rollout, Status
from tests.trainer.conftest import action, observation, rollout

TWO_TURNS = rollout(
    observation(1, 2),
    Action((3, 4), (-0.1, -0.2), (5, 5)),
    observation(6),
    Action((7,), (-0.3,), (6,)),
    observation(8, 9),
    reward=1.0,
    turn_rewards=(0.25,),
)
TRUNCATED = rollout(observation(1), action(2), reward=0.0, status=Status.TRUNCATED)


def test_everything_known_of_an_action_token_stands_at_its_place():
    (batch,) = pack([TWO_TURNS], budget=100)
    assert batch.tokens.tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert batch.positions.tolist() == list(range(8))
    assert batch.actions.tolist() == [2, 3, 5]
    assert batch.sampled.tolist() == [3, 4, 7]
    assert batch.before.tolist() == [1, 2, 4]
    assert batch.behaviour.tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert batch.versions.tolist() == [5, 5, 6]
    assert batch.turn_lengths == ((2, 1),)
    assert batch.action_lengths == (3,)
    assert batch.ends.tolist() == [7]


def test_a_reward_on_a_trailing_observation_stands_at_the_last_action_token():
    (batch,) = pack([TWO_TURNS], budget=100)
    assert batch.rewards.tolist() == pytest.approx([0, 0.25, 0.75])


def test_positions_begin_anew_with_every_rollout_and_shorter_rollouts_go_first():
    (batch,) = pack([TWO_TURNS, TRUNCATED], budget=100)
    assert batch.rollouts == (1, 0)
    assert batch.cu_seqlens.tolist() == [0, 2, 10]
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.positions.tolist() == [0, 1, *range(8)]
    assert batch.actions.tolist() == [1, 4, 5, 7]
    assert batch.truncated.tolist() == [1, 0]


def test_a_rollout_longer_than_the_budget_has_a_micro_batch_of_its_own():
    batches = pack([TWO_TURNS, TRUNCATED, TRUNCATED], budget=4)
    assert [b.rollouts for b in batches] == [(1, 2), (0,)]


lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20)


@given(lengths, st.integers(1, 30))
def test_every_rollout_is_in_one_micro_batch_whole_and_within_the_budget(shapes: list[tuple[int, int]], budget: int):
    rollouts = [rollout(observation(*range(o)), action(*range(a))) for o, a in shapes]
    batches = pack(rollouts, budget)
    assert sorted(i for b in batches for i in b.rollouts) == list(range(len(rollouts)))
    assert sum(len(b.tokens) for b in batches) == sum(r.tokens for r in rollouts)
    for batch in batches:
        assert len(batch.tokens) <= budget or len(batch.rollouts) == 1


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (rollout(observation(1), action(2), reward=None), "unscored"),
        (rollout(observation(1)), "no action tokens"),
        (rollout(observation(), action(2)), "begins with an action"),
        (rollout(observation(1), Action((2, 3), (-1.0,), (0, 0))), "action 0: 2 tokens, 1 log-probabilities"),
    ],
    ids=["unscored", "no action", "no context", "uneven"],
)
def test_what_cannot_be_trained_on_is_refused(broken: Rollout, words: str):
    with pytest.raises(RunError, match=words):
        pack([broken], 100)


def test_a_micro_batch_is_of_one_part_of_the_batch():
    rollouts = [rollout(observation(1), action(*range(1, n + 1)), id=str(n)) for n in (5, 1, 4, 2, 3)]
    batches = pack(rollouts, 1000, parts=2)
    # Of five rollouts the first three are one part, the last two another; each shortest first.
    assert [(b.part, b.rollouts) for b in batches] == [(0, (1, 2, 0)), (1, (3, 4))]
    assert [b.rollouts for b in pack(rollouts, 7, parts=2)] == [(1, 2), (0,), (3, 4)]
