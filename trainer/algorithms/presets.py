"""Presets: vetted combinations, with the values that were published and where.

Learning rates belong to the model and the optimizer (`learner.lr`); they are told here, and set by the config alone.

- `sao`: SAO (arXiv 2607.07508), its reasoning setting: skip-observation GAE with γ = 1 and λ = 1 − 1/(1.5·l), critic
  λ = 1; `dis` with 0.3/5.0 (its coding setting is 0.8/3.0); critic lr 5e-6, 2 updates per policy update, 10
  value-only warm-up steps, attention frozen; policy lr 1e-6. The normalization is not published: `token`, as AReaL
  does.
- `grpo`: GRPO (DeepSeekMath, arXiv 2402.03300): z-scores in a group, the mean over each rollout and then over
  rollouts, one update from each batch, lr 1e-6. ε is not published there: 0.2, PPO's. Published are groups of 64;
  here 8, as in the SAO paper's control (16 × 8). Published with KL 0.04, which is left out, as is usual where rewards
  are verified (DAPO, Dr. GRPO): `kl: {coef: 0.04}` brings it back.
- `dr_grpo`: Dr. GRPO (arXiv 2503.20783, and the repository sail-sg/understand-r1-zero): no standard deviation,
  division by a constant, groups of 8, ε 0.2 (the default of oat, which it runs on), no KL, one update, lr 1e-6. Its
  constant is the longest completion (3000); here it is `model.max_length`.
- `dapo`: DAPO (arXiv 2503.14476, section 4.1): clip 0.2/0.28, mean over all tokens of an update (so its code; its
  formula: of a group), groups of 16, no KL, lr 1e-6 with a warm-up of 20 rollout steps. It cuts a batch of 512 × 16
  rollouts into 16 parts of 512; batches here are no larger than such a part, so that it is one update: with larger
  ones, `updates: 16, minibatches: 16`. Its dynamic sampling is no part of the objective but of what is admitted:
  `async: {filters: {zero_std: true}}`. Its penalty for over-long answers belongs to the environment's rewards.
- `rloo`: RLOO (arXiv 2402.14740): leave-one-out in groups of 4 (published: 2 and 4) with the plain policy gradient,
  lr 1e-6. The rollout is one action there, so the loss is a sum over its tokens: `constant`, of which only the
  learning rate feels the size. Published with a KL in the reward (0.03 for TL;DR, 0.1 for HH), which is left out as
  above, and with two updates from each batch; here it is one.
- `cispo`: CISPO (MiniMax-M1, arXiv 2506.13585): group z-scores, weights bounded from above alone, mean over all
  tokens, no KL. Its upper bound and group size are not published: a weight of at most 5 and groups of 16 are those of
  ScaleRL (arXiv 2510.13786, as TRL's paper index gives them), which found bounds of 4, 5 and 8 to do the same (A.17).
  MiniMax makes 16 updates from each batch, with DAPO's dynamic sampling; here it is one.
- `gspo`: GSPO (arXiv 2507.18071v2, section 5.1): a rollout's ratio within 3e-4 below and 4e-4 above 1, each batch cut
  into 4 parts, the mean over rollouts. Group size and lr are not published, and KL is left out of its formulas for
  brevity: groups of 8 and no KL here. ScaleRL (A.17) found ranges ten times as wide to do as well or better.
- `areal`: AReaL (arXiv 2505.24298, Table 3): decoupled PPO with the exact proximal policy and ε 0.2, γ = λ = 1
  without a critic, 16 rollouts of a task, each batch cut into 4 parts, no KL, lr 2e-5; staleness 4 for code, 8 for
  mathematics. Tokens whose ratio to the rollout policy is above 5 are dropped, as in the configs of its released runs
  (`behav_imp_weight_cap: 5.0`; those of its code models have one part and staleness 16). Group z-scores are those of
  its examples, which go on to normalise over the batch and have ε 0.4; its released runs normalise over the batch
  alone.
"""

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
)
from moonmill.errors import ConfigError
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm, problem

__all__ = ["PRESETS", "ResolvedAlgorithm", "resolve"]

PRESETS: dict[str, ResolvedAlgorithm] = {
    "sao": ResolvedAlgorithm(
        GaeConfig(gamma=1.0, lam="adaptive", alpha=1.5, critic_lam=1.0),
        DisConfig(low=0.3, high=5.0),
        CriticConfig(lr=5e-6, updates=2, warmup_steps=10, freeze_attention=True),
    ),
    "grpo": ResolvedAlgorithm(
        GroupZscoreConfig(group_size=8), PpoClipConfig(low=0.2, high=0.2), normalization="sequence"
    ),
    "dr_grpo": ResolvedAlgorithm(
        GroupMeanConfig(group_size=8), PpoClipConfig(low=0.2, high=0.2), normalization="constant"
    ),
    "dapo": ResolvedAlgorithm(GroupZscoreConfig(group_size=16), PpoClipConfig(low=0.2, high=0.28)),
    "rloo": ResolvedAlgorithm(RlooConfig(group_size=4), ReinforceConfig(), normalization="constant"),
    "cispo": ResolvedAlgorithm(GroupZscoreConfig(group_size=16), CispoConfig(low=None, high=4.0)),
    "gspo": ResolvedAlgorithm(
        GroupZscoreConfig(group_size=8),
        GspoConfig(low=3e-4, high=4e-4),
        normalization="sequence",
        updates=4,
        minibatches=4,
    ),
    "areal": ResolvedAlgorithm(
        GroupZscoreConfig(group_size=16),
        DecoupledPpoConfig(low=0.2, high=0.2, proximal="exact"),
        correction=IcepopConfig(level="token", low=0.0, high=5.0),
        updates=4,
        minibatches=4,
    ),
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
    learned = isinstance(advantage, GaeConfig)
    algorithm = ResolvedAlgorithm(
        advantage=advantage,
        objective=config.objective or preset.objective,
        # The preset's critic goes where its advantage goes; one that the config asks for is looked at.
        critic=config.critic or (preset.critic if learned else None),
        correction=config.correction or preset.correction,
        normalization=config.normalization or preset.normalization,
        normalization_constant=config.normalization_constant,
        kl=config.kl or preset.kl,
        entropy_coef=config.entropy_coef,
        updates=config.updates or preset.updates,
        minibatches=config.minibatches or preset.minibatches,
        staleness_scaling=config.staleness_scaling,
    )
    said = problem(algorithm) or _batch_problem(algorithm, batch_rollouts)
    if said is not None:
        raise ConfigError(said)
    return algorithm


def _batch_problem(algorithm: ResolvedAlgorithm, batch_rollouts: int) -> str | None:
    """Why a batch cannot be of that size."""
    size, parts = algorithm.group_size, algorithm.minibatches
    if batch_rollouts % size:
        near = max(size, round(batch_rollouts / size) * size)
        return (
            f"learner.batch_rollouts: {batch_rollouts} is not a multiple of the group size "
            f"(algorithm.advantage.group_size: {size}), so a batch would split a group: try {near}"
        )
    if batch_rollouts < parts:
        return (
            f"algorithm.minibatches: {parts} is more than a batch has rollouts (learner.batch_rollouts: "
            f"{batch_rollouts}), so some parts would be empty"
        )
    return None
