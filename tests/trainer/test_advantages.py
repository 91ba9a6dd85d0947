"""From packed rollouts to advantages: what a step of GAE is, against numbers worked out by hand."""

from pathlib import Path

import pytest
import torch

from moonmill.algorithm_config import CriticConfig, GaeConfig
from moonmill.trainer.advantages import critic_targets, gae_advantages
from moonmill.trainer.learner import Learner
from moonmill.trainer.packing import MicroBatch, pack
from tests.trainer.conftest import MakeConfig, action, observation, rollout, sampled

ROLLOUTS = [
    rollout(observation(1, 2), action(3, 4), observation(5), action(6), observation(7), reward=1.0),
    rollout(observation(1), action(8), reward=0.5),
]


def batch_of(skip: bool) -> MicroBatch:
    """The shorter rollout comes first in it: its two tokens, and then the seven of the longer."""
    (batch,) = pack(ROLLOUTS, 100, skip_observations=skip)
    return batch


def test_what_is_valued():
    skipping, stepping = batch_of(True), batch_of(False)
    assert skipping.valued.tolist() == skipping.actions.tolist() == [1, 4, 5, 7]
    assert skipping.valued_lengths == (1, 3)
    assert stepping.actions.tolist() == [1, 4, 5, 7]
    assert stepping.valued.tolist() == [1, 4, 5, 6, 7, 8]
    assert stepping.valued_lengths == (1, 5)
    assert stepping.valued[stepping.acting].tolist() == stepping.actions.tolist()


def test_observations_are_skipped_by_hand():
    config = GaeConfig(gamma=0.5, lam=0.5, critic_lam=1.0)
    values, ends = torch.tensor([0.2, 0.4, 0.6, 0.8]), torch.zeros(2)
    # From the end: δ = 1 − 0.8 = 0.2; 0.5·0.8 − 0.6 + 0.25·0.2 = −0.15; 0.5·0.6 − 0.4 − 0.25·0.15 = −0.1375.
    found = gae_advantages(config, batch_of(True), values, ends)
    assert found.tolist() == pytest.approx([0.3, -0.1375, -0.15, 0.2])
    assert critic_targets(config, batch_of(True), values, ends).tolist() == pytest.approx([0.5, 0.25, 0.5, 1.0])


def test_observations_are_steps_by_hand():
    config = GaeConfig(gamma=0.5, lam=0.5, critic_lam=1.0, skip_observations=False)
    values, ends = torch.tensor([0.2, 0.4, 0.6, 0.8, 0.6, 0.2]), torch.zeros(2)
    # The reward is at the last action token, 6; the observation 7 after it gets none.
    # From the end: −0.2; 1 + 0.5·0.2 − 0.6 + 0.25·(−0.2) = 0.45; 0.5·0.6 − 0.8 + 0.25·0.45 = −0.3875;
    # 0.5·0.8 − 0.6 − 0.25·0.3875 = −0.296875; 0.5·0.6 − 0.4 − 0.25·0.296875 = −0.17421875.
    found = gae_advantages(config, batch_of(False), values, ends)
    assert found.tolist() == pytest.approx([0.3, -0.17421875, -0.296875, 0.45])
    targets = critic_targets(config, batch_of(False), values, ends)
    assert targets.tolist() == pytest.approx([0.5, 0.125, 0.25, 0.5, 1.0, 0.0], abs=1e-6)


def test_without_discount_the_steps_make_no_difference_to_the_return():
    found = []
    for skip in (True, False):
        batch = batch_of(skip)
        config = GaeConfig(gamma=1.0, lam=1.0, skip_observations=skip)
        zeros = torch.zeros(len(batch.valued))
        found.append(gae_advantages(config, batch, zeros, torch.zeros(2)).tolist())
    assert found[0] == found[1] == pytest.approx([0.5, 1.0, 1.0, 1.0])


def test_the_adaptive_lambda_counts_steps():
    batch = batch_of(False)
    config = GaeConfig(gamma=1.0, lam="adaptive", alpha=1.5, skip_observations=False)
    values = torch.full((6,), 0.5)
    found = gae_advantages(config, batch, values, torch.zeros(2))
    lam = 1 - 1 / (1.5 * 5)
    # δ is 1 at the token 6, −0.5 after it, and 0 before. The other rollout has one step: λ = 1/3, and its δ is 0.
    of_6 = 1.0 - lam * 0.5
    assert found.tolist() == pytest.approx([0.0, lam**3 * of_6, lam**2 * of_6, of_6])


def test_the_critic_learns_the_values_before_observations_too(make_config: MakeConfig, model_path: Path):
    rollouts = sampled(model_path, 2)
    advantage = GaeConfig(skip_observations=False)
    learner = Learner(make_config(critic=CriticConfig(lr=3e-3, updates=4, warmup_steps=100), advantage=advantage))
    for _ in range(20):
        metrics = learner.step(rollouts).metrics
    assert metrics["explained_variance"] > 0.6
