"""Skip-observation GAE against numbers worked out by hand."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moonmill.trainer.algorithms.gae import adaptive_lambda, place_rewards, skip_observation_gae


def gae(values, rewards, lengths, *, gamma=1.0, lam=1.0, bootstrap=None):
    lams = torch.tensor(lam if isinstance(lam, list) else [lam] * len(lengths))
    end = None if bootstrap is None else torch.tensor(bootstrap)
    return skip_observation_gae(
        torch.tensor(values), torch.tensor(rewards), lengths, gamma=gamma, lam=lams, bootstrap=end
    ).tolist()


def test_the_recursion_goes_from_an_actions_last_token_to_the_next_actions_first():
    # Two actions of two tokens, an observation of any length between them, γ = 0.5, λ = 0.5, reward 1 at the end.
    # V:        0.1  0.2 | 0.4  0.8
    # δ4 = 1 − 0.8                = 0.2        Â4 = 0.2
    # δ3 = 0 + 0.5·0.8 − 0.4      = 0          Â3 = 0 + 0.25·0.2         = 0.05
    # δ2 = 0 + 0.5·0.4 − 0.2      = 0          Â2 = 0 + 0.25·0.05        = 0.0125
    # δ1 = 0 + 0.5·0.2 − 0.1      = 0          Â1 = 0 + 0.25·0.0125      = 0.003125
    got = gae([0.1, 0.2, 0.4, 0.8], [0.0, 0.0, 0.0, 1.0], [4], gamma=0.5, lam=0.5)
    assert got == pytest.approx([0.003125, 0.0125, 0.05, 0.2])


def test_a_turns_reward_counts_where_its_action_ends():
    # Rewards 0.5 at the first action's end and 1 at the second's, γ = 1, λ = 0.5.
    # V:        0.3  0.6 | 0.2  0.9
    # Â4 = 1 − 0.9 = 0.1
    # Â3 = (0.9 − 0.2) + 0.5·0.1          = 0.75
    # Â2 = (0.5 + 0.2 − 0.6) + 0.5·0.75   = 0.475
    # Â1 = (0.6 − 0.3) + 0.5·0.475        = 0.5375
    got = gae([0.3, 0.6, 0.2, 0.9], [0.0, 0.5, 0.0, 1.0], [4], lam=0.5)
    assert got == pytest.approx([0.5375, 0.475, 0.75, 0.1])


def test_a_truncated_episode_goes_on_with_the_value_it_was_cut_at():
    # V: 0.5 0.25, cut with a value of 0.8 behind it, no reward, γ = 0.5, λ = 0.5.
    # Â2 = 0.5·0.8 − 0.25                   = 0.15
    # Â1 = (0.5·0.25 − 0.5) + 0.25·0.15     = −0.3375
    got = gae([0.5, 0.25], [0.0, 0.0], [2], gamma=0.5, lam=0.5, bootstrap=[0.8])
    assert got == pytest.approx([-0.3375, 0.15])


def test_without_bootstrap_a_truncated_episode_ends_at_its_reward():
    assert gae([0.5, 0.25], [0.0, 0.0], [2], lam=1.0) == pytest.approx([-0.5, -0.25])


def test_with_lambda_and_gamma_one_the_values_plus_advantages_are_the_returns():
    values, rewards = [0.3, -2.0, 5.0], [1.0, 0.0, 2.0]
    got = [a + v for a, v in zip(gae(values, rewards, [3]), values, strict=True)]
    assert got == pytest.approx([3.0, 2.0, 2.0])


def test_rollouts_of_different_lengths_and_lambdas_do_not_touch_each_other():
    one = gae([0.1, 0.2, 0.3], [0.0, 0.0, 1.0], [3], lam=0.9)
    two = gae([0.7], [0.5], [1], lam=0.2, bootstrap=[0.4])
    both = gae([0.1, 0.2, 0.3, 0.7], [0.0, 0.0, 1.0, 0.5], [3, 1], lam=[0.9, 0.2], bootstrap=[0.0, 0.4])
    assert both == pytest.approx([*one, *two])


@given(
    lengths=st.lists(
        st.one_of(st.integers(1, 200), st.sampled_from([63, 64, 65, 128, 129, 5000])), min_size=1, max_size=8
    ),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_recursion_whatever_the_lengths(lengths: list[int], gamma: float, lam: float, seed: int):
    """Against the formula, one token after the other. Rollouts alternate between λ and 1, and in being truncated."""
    draw = torch.Generator().manual_seed(seed)
    values, rewards = torch.randn(2, sum(lengths), generator=draw, dtype=torch.float64)
    lams = torch.tensor([lam, 1.0] * len(lengths), dtype=torch.float64)[: len(lengths)]
    ends = torch.randn(len(lengths), generator=draw, dtype=torch.float64) * (torch.arange(len(lengths)) % 3 == 0)
    got = skip_observation_gae(values, rewards, lengths, gamma=gamma, lam=lams, bootstrap=ends).tolist()
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    for rollout, (begin, end) in enumerate(pairwise(bounds)):
        following, carried = float(ends[rollout]), 0.0
        for t in range(end - 1, begin - 1, -1):
            carried = float(rewards[t]) + gamma * following - float(values[t]) + gamma * float(lams[rollout]) * carried
            following = float(values[t])
            assert got[t] == pytest.approx(carried, abs=1e-9)


def test_adaptive_lambda_grows_with_the_number_of_action_tokens():
    # α = 1.5: 1 − 1/(1.5·2) = 2/3, 1 − 1/(1.5·10) = 14/15; a single token would have 1/3.
    assert adaptive_lambda([1, 2, 10], 1.5).tolist() == pytest.approx([1 / 3, 2 / 3, 14 / 15])


def test_adaptive_lambda_is_never_negative():
    assert adaptive_lambda([1], 0.5).tolist() == [0.0]


def test_the_final_reward_belongs_to_the_last_action_token():
    assert place_rewards(1.0, [], [2, 3]) == [0, 0, 0, 0, 1.0]


def test_turn_rewards_belong_to_the_last_token_of_their_action_and_the_rest_to_the_end():
    assert place_rewards(1.0, [0.25, 0.5], [2, 3]) == pytest.approx([0, 0.25, 0, 0, 0.75])


def test_a_turn_reward_after_the_last_action_belongs_to_it():
    assert place_rewards(0.5, [0.0, 0.0, 0.5], [1, 2]) == pytest.approx([0, 0, 0.5])


def test_the_reward_of_an_action_without_tokens_belongs_to_the_token_before_it():
    assert place_rewards(1.0, [0.25, 0.75], [2, 0]) == pytest.approx([0, 1.0])
    assert place_rewards(0.5, [0.5], [0, 2]) == pytest.approx([0.5, 0])
