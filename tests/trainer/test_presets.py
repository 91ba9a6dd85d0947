"""What presets stand for, what may differ from them, and what is refused."""

import pytest

from moonmill.algorithm_config import (
    AlgorithmConfig,
    CriticConfig,
    DisConfig,
    GaeConfig,
    GroupZscoreConfig,
    PpoClipConfig,
)
from moonmill.errors import ConfigError
from moonmill.trainer.algorithms.presets import ResolvedAlgorithm, resolve


def test_sao_is_as_published():
    algorithm = resolve(AlgorithmConfig("sao"), 64)
    assert algorithm == ResolvedAlgorithm(
        GaeConfig(gamma=1, lam="adaptive", alpha=1.5, critic_lam=1),
        DisConfig(low=0.3, high=5.0),
        CriticConfig(lr=5e-6, updates=2, warmup_steps=10, freeze_attention=True),
    )
    assert (algorithm.group_size, algorithm.min_valid) == (1, 1)


def test_grpo_compares_groups_and_has_no_critic():
    algorithm = resolve(AlgorithmConfig("grpo"), 64)
    assert algorithm == ResolvedAlgorithm(
        GroupZscoreConfig(group_size=8), PpoClipConfig(low=0.2, high=0.2), None, normalization="sequence"
    )
    assert (algorithm.group_size, algorithm.min_valid) == (8, 2)


def test_each_choice_can_be_overridden():
    algorithm = resolve(AlgorithmConfig("grpo", objective=DisConfig(0.8, 3.0)), 64)
    assert algorithm.objective == DisConfig(0.8, 3.0)
    assert algorithm.advantage == GroupZscoreConfig()


def test_sao_with_a_group_advantage_has_no_critic():
    assert resolve(AlgorithmConfig("sao", advantage=GroupZscoreConfig(group_size=4)), 64).critic is None


def test_grpo_with_gae_and_a_critic_is_fine():
    critic = CriticConfig(lr=1e-4)
    assert resolve(AlgorithmConfig("grpo", advantage=GaeConfig(), critic=critic), 64).critic == critic


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (AlgorithmConfig("grpo", advantage=GaeConfig()), "needs a critic"),
        (AlgorithmConfig("grpo", critic=CriticConfig()), "uses no critic"),
        (AlgorithmConfig("sao", advantage=GroupZscoreConfig(), critic=CriticConfig()), "uses no critic"),
        (AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=7)), "64 is not a multiple .* try 63"),
        (AlgorithmConfig("grpo", advantage=GroupZscoreConfig(min_valid=9)), "every group would be dropped"),
        (AlgorithmConfig("sao", objective=DisConfig(low=1.0)), "bounds nothing"),
    ],
    ids=["gae without critic", "grpo with critic", "group with critic", "batch splits a group", "min_valid", "low"],
)
def test_what_makes_no_sense_is_refused_with_the_reason(config: AlgorithmConfig, words: str):
    with pytest.raises(ConfigError, match=words):
        resolve(config, 64)
