"""What presets stand for, what may differ from them, and what is refused."""

import pytest

from moonmill.algorithm_config import (
    AlgorithmConfig,
    CispoConfig,
    CriticConfig,
    DecoupledPpoConfig,
    DisConfig,
    GaeConfig,
    GroupMeanConfig,
    GroupZscoreConfig,
    GspoConfig,
    IcepopConfig,
    PpoClipConfig,
    ReinforceConfig,
    RlooConfig,
    RunningMeanConfig,
    TisConfig,
)
from moonmill.errors import ConfigError
from moonmill.trainer.algorithms.presets import PRESETS, ResolvedAlgorithm, resolve


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dr_grpo", ResolvedAlgorithm(GroupMeanConfig(8), PpoClipConfig(0.2, 0.2), normalization="constant")),
        ("dapo", ResolvedAlgorithm(GroupZscoreConfig(16), PpoClipConfig(0.2, 0.28), normalization="token")),
        ("rloo", ResolvedAlgorithm(RlooConfig(4), ReinforceConfig(), normalization="constant")),
        ("cispo", ResolvedAlgorithm(GroupZscoreConfig(16), CispoConfig(None, 4.0), normalization="token")),
        (
            "gspo",
            ResolvedAlgorithm(
                GroupZscoreConfig(8), GspoConfig(3e-4, 4e-4), normalization="sequence", updates=4, minibatches=4
            ),
        ),
        (
            "areal",
            ResolvedAlgorithm(
                GroupZscoreConfig(16),
                DecoupledPpoConfig(0.2, 0.2, "exact"),
                correction=IcepopConfig("token", 0.0, 5.0),
                updates=4,
                minibatches=4,
            ),
        ),
    ],
)
def test_the_other_presets_are_as_published(name, expected):
    assert resolve(AlgorithmConfig(name), 64) == expected
    assert expected.critic is None
    assert expected.kl is None
    assert expected.group_size > 1


def test_there_is_a_preset_for_each_name_of_the_config():
    assert set(AlgorithmConfig.__annotations__["preset"].__args__) == set(PRESETS)


def test_running_means_are_of_single_rollouts_and_take_no_critic():
    algorithm = resolve(AlgorithmConfig("sao", advantage=RunningMeanConfig(last=4)), 63)
    assert (algorithm.group_size, algorithm.min_valid, algorithm.critic) == (1, 1, None)


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
        (AlgorithmConfig("cispo", objective=CispoConfig(low=1.5)), "1.5 bounds nothing.* or null"),
        (AlgorithmConfig("sao", advantage=RunningMeanConfig(), critic=CriticConfig()), "running_mean .*uses no critic"),
        (AlgorithmConfig("sao", correction=TisConfig()), "tis does not go with dis.* would count twice"),
        (AlgorithmConfig("areal", objective=DisConfig()), "icepop does not go with dis"),
        (AlgorithmConfig("rloo", updates=2), "2 does not go with reinforce without a correction"),
        (AlgorithmConfig("gspo", updates=5), "5 is not a multiple of algorithm.minibatches .4.*try 4"),
        (AlgorithmConfig("sao", minibatches=2), "1 is not a multiple of algorithm.minibatches .2.*try 2"),
        (AlgorithmConfig("sao", updates=65, minibatches=65), "65 is more than a batch has rollouts"),
        (AlgorithmConfig("sao", normalization_constant=9), "9 is not used with normalization token"),
    ],
    ids=[
        "gae without critic",
        "grpo with critic",
        "group with critic",
        "batch splits a group",
        "min_valid",
        "low",
        "low of cispo",
        "running mean with critic",
        "dis with tis",
        "areal with dis",
        "reinforce twice",
        "updates and parts",
        "parts alone",
        "more parts than rollouts",
        "constant of nothing",
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(config: AlgorithmConfig, words: str):
    with pytest.raises(ConfigError, match=words):
        resolve(config, 64)


def test_reinforce_may_update_twice_with_a_correction():
    assert resolve(AlgorithmConfig("rloo", updates=2, correction=TisConfig()), 64).updates == 2
