"""Named algorithms: which advantage, which objective, with a critic or without.

`sao`   gae + dis + critic. SAO, arXiv 2607.07508: mask 0.3 / 5.0 (reasoning), λ = 1 − 1/(1.5·l), critic λ 1, γ 1, K = 2, value
        learning rate 5e-6, 10 value-only steps.
`grpo`  group_zscore + ppo_clip. DeepSeekMath, arXiv 2402.03300: groups; clip 0.2 as in PPO. Without the KL term, as in DAPO
        (arXiv 2503.14476) and most of what came after.
"""

from msgspec import Struct

from moonmill.config import AlgorithmConfig, CriticConfig, DisConfig, GaeConfig, GroupZscoreConfig, PpoClipConfig
from moonmill.errors import ConfigError


class ResolvedAlgorithm(Struct, frozen=True):
    """An algorithm with every choice made."""

    advantage: GaeConfig | GroupZscoreConfig
    objective: DisConfig | PpoClipConfig
    critic: CriticConfig | None

    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared; 1 in single-rollout mode."""
        return self.advantage.group_size if isinstance(self.advantage, GroupZscoreConfig) else 1

    @property
    def min_valid(self) -> int:
        """Members a group needs to be of use."""
        return self.advantage.min_valid if isinstance(self.advantage, GroupZscoreConfig) else 1


PRESETS = {
    "sao": ResolvedAlgorithm(GaeConfig(), DisConfig(), CriticConfig()),
    "grpo": ResolvedAlgorithm(GroupZscoreConfig(), PpoClipConfig(), None),
}


def resolve(config: AlgorithmConfig, batch_rollouts: int) -> ResolvedAlgorithm:
    """The preset, with what the config says differently.

    Raises:
        ConfigError: the combination makes no sense.
    """
    preset = PRESETS[config.preset]
    advantage = config.advantage or preset.advantage
    objective = config.objective or preset.objective
    critic = config.critic or preset.critic
    if isinstance(advantage, GaeConfig):
        critic = critic or CriticConfig()
        return ResolvedAlgorithm(advantage, objective, critic)
    if config.critic is not None:
        raise ConfigError(
            "algorithm.critic: the advantage `group_zscore` compares rollouts of one task and has no use for a critic; "
            "leave it out, or choose `advantage: {type: gae}`"
        )
    if advantage.min_valid > advantage.group_size:
        raise ConfigError(
            f"algorithm.advantage.min_valid: {advantage.min_valid} is more than group_size ({advantage.group_size})"
        )
    if batch_rollouts % advantage.group_size:
        raise ConfigError(
            f"learner.batch_rollouts: {batch_rollouts} is not a multiple of algorithm.advantage.group_size "
            f"({advantage.group_size}), so a batch would cut a group"
        )
    return ResolvedAlgorithm(advantage, objective, None)
