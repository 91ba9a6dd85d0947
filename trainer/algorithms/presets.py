"""Presets: vetted combinations of advantage, objective and critic, and what combinations make sense.

- `sao`: SAO (arXiv 2607.07508), its reasoning setting: skip-observation GAE with γ = 1 and λ = 1 − 1/(1.5·l), critic
  λ = 1; `dis` with 0.3/5.0 (its coding setting is 0.8/3.0); critic lr 5e-6, 2 updates per policy update, 10 value-only
  warm-up steps, attention frozen; policy lr 1e-6 (`learner.lr`).
- `grpo`: GRPO (arXiv 2402.03300) with PPO's clip of 0.2, in groups of 8 as in the SAO paper's control (16 × 8). Without
  GRPO's KL term, as is usual where rewards are verified.
"""

from msgspec import Struct

from moonmill.algorithm_config import (
    AlgorithmConfig,
    CriticConfig,
    DisConfig,
    GaeConfig,
    GroupZscoreConfig,
    PpoClipConfig,
)
from moonmill.errors import ConfigError

Advantage = GaeConfig | GroupZscoreConfig
Objective = DisConfig | PpoClipConfig


class ResolvedAlgorithm(Struct, frozen=True):
    """What a preset and its overrides come to. There is a critic exactly where the advantage is learned."""

    advantage: Advantage
    objective: Objective
    critic: CriticConfig | None

    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared; 1 is the single-rollout mode."""
        return self.advantage.group_size if isinstance(self.advantage, GroupZscoreConfig) else 1

    @property
    def min_valid(self) -> int:
        """Members a group needs to be kept."""
        return self.advantage.min_valid if isinstance(self.advantage, GroupZscoreConfig) else 1


PRESETS: dict[str, ResolvedAlgorithm] = {
    "sao": ResolvedAlgorithm(
        GaeConfig(gamma=1.0, lam="adaptive", alpha=1.5, critic_lam=1.0),
        DisConfig(low=0.3, high=5.0),
        CriticConfig(lr=5e-6, updates=2, warmup_steps=10, freeze_attention=True),
    ),
    "grpo": ResolvedAlgorithm(GroupZscoreConfig(group_size=8), PpoClipConfig(low=0.2, high=0.2), None),
}


def resolve(config: AlgorithmConfig, batch_rollouts: int) -> ResolvedAlgorithm:
    """The preset with its overrides.

    Args:
        config: the run's.
        batch_rollouts: rollouts per policy update.

    Raises:
        ConfigError: the combination makes no sense.
    """
    preset = PRESETS[config.preset]
    advantage = config.advantage or preset.advantage
    objective = config.objective or preset.objective
    if isinstance(advantage, GaeConfig):
        critic = config.critic or preset.critic
        if critic is None:
            raise ConfigError(
                f"algorithm.advantage: gae needs a critic, and the preset {config.preset} has none: add "
                "algorithm.critic, or take preset sao"
            )
    else:
        critic = None
        _check_group(advantage, config, batch_rollouts)
    if objective.low >= 1:
        raise ConfigError(
            f"algorithm.objective.low: {objective.low:g} bounds nothing: the bound is 1 - low, and ratios are never "
            "below 0: give a number below 1"
        )
    return ResolvedAlgorithm(advantage, objective, critic)


def _check_group(advantage: GroupZscoreConfig, config: AlgorithmConfig, batch_rollouts: int) -> None:
    size = advantage.group_size
    if config.critic is not None:
        raise ConfigError(
            "algorithm.critic: group_zscore compares the rollouts of a group and uses no critic: leave critic out, or "
            "take the advantage gae"
        )
    if batch_rollouts % size:
        near = max(size, round(batch_rollouts / size) * size)
        raise ConfigError(
            f"learner.batch_rollouts: {batch_rollouts} is not a multiple of the group size "
            f"(algorithm.advantage.group_size: {size}), so a batch would split a group: try {near}"
        )
    if advantage.min_valid > size:
        raise ConfigError(
            f"algorithm.advantage.min_valid: {advantage.min_valid} is more than a group has (group_size: {size}), so "
            "every group would be dropped"
        )
