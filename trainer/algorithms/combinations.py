"""What goes together in an algorithm, and the reason where something does not.

What always holds: `problem` names a key, its value, the reason and what to do; it looks at the choices alone, not at a
particular run (`presets.resolve` does).
"""

from collections.abc import Callable

from msgspec import Struct

from moonmill.algorithm_config import (
    Advantage,
    CispoConfig,
    Correction,
    CriticConfig,
    DisConfig,
    GaeConfig,
    GroupMeanConfig,
    GroupZscoreConfig,
    KlConfig,
    NoCorrectionConfig,
    Normalization,
    Objective,
    ReinforceConfig,
    RlooConfig,
)

GroupAdvantage = GroupZscoreConfig | GroupMeanConfig | RlooConfig


class ResolvedAlgorithm(Struct, frozen=True):
    """What a preset and its overrides come to. There is a critic exactly where the advantage is learned."""

    advantage: Advantage
    objective: Objective
    critic: CriticConfig | None = None
    correction: Correction = NoCorrectionConfig()
    normalization: Normalization = "token"
    normalization_constant: int | None = None
    kl: KlConfig | None = None
    entropy_coef: float = 0.0
    updates: int = 1
    minibatches: int = 1
    staleness_scaling: float = 0.0

    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared; 1 is the single-rollout mode."""
        return self.advantage.group_size if isinstance(self.advantage, GroupAdvantage) else 1

    @property
    def min_valid(self) -> int:
        """Members a group needs to be kept."""
        return self.advantage.min_valid if isinstance(self.advantage, GroupAdvantage) else 1


def problem(algorithm: ResolvedAlgorithm) -> str | None:
    """Why these do not go together; None where they do."""
    return next((said for rule in RULES if (said := rule(algorithm)) is not None), None)


def _critic(c: ResolvedAlgorithm) -> str | None:
    """`gae` needs a critic, and nothing else can use one."""
    name = tag(c.advantage)
    if isinstance(c.advantage, GaeConfig):
        if c.critic is None:
            return (
                "algorithm.advantage: gae needs a critic, and the preset has none: add algorithm.critic, or take "
                "preset sao"
            )
        return None
    if c.critic is None:
        return None
    compared = "the last rewards of a task" if name == "running_mean" else "the rollouts of a group"
    return (
        f"algorithm.critic: {name} compares with {compared} and uses no critic: leave critic out (with "
        "--set or --vary: algorithm.critic=null), or take the advantage gae"
    )


def _min_valid(c: ResolvedAlgorithm) -> str | None:
    """A group has as many members as it must keep."""
    advantage = c.advantage
    if not isinstance(advantage, GroupAdvantage) or advantage.min_valid <= advantage.group_size:
        return None
    return (
        f"algorithm.advantage.min_valid: {advantage.min_valid} is more than a group has (group_size: "
        f"{advantage.group_size}), so every group would be dropped"
    )


def _low(c: ResolvedAlgorithm) -> str | None:
    """A lower bound on a ratio is above 0."""
    low = None if isinstance(c.objective, ReinforceConfig) else c.objective.low
    if low is None or low < 1:
        return None
    instead = " or null" if isinstance(c.objective, CispoConfig) else ""
    return (
        f"algorithm.objective.low: {low:g} bounds nothing: the bound is 1 - low, and ratios are never below 0: give a "
        f"number below 1{instead}"
    )


def _dis_is_a_correction(c: ResolvedAlgorithm) -> str | None:
    """`dis` masks the ratio to the rollout policy itself, so a correction would count that ratio twice."""
    if not isinstance(c.objective, DisConfig) or isinstance(c.correction, NoCorrectionConfig):
        return None
    name = tag(c.correction)
    return (
        f"algorithm.correction: {name} does not go with dis, which weights and masks each token by its ratio to the "
        f"rollout policy already, so that ratio would count twice: set the correction to {{type: none}}, or take "
        f"{{type: reinforce}} as the objective, which {name} makes as much of as dis does"
    )


def _reinforce_once(c: ResolvedAlgorithm) -> str | None:
    """`reinforce` takes every token for its own policy's, which after an update of the same batch none is."""
    if not isinstance(c.objective, ReinforceConfig) or c.updates == 1:
        return None
    if not isinstance(c.correction, NoCorrectionConfig):
        return None
    return (
        f"algorithm.updates: {c.updates} does not go with reinforce without a correction: it has no ratio, so the "
        "later updates of a batch would take its tokens for those of a policy that never sampled them: set updates to "
        "1, or add a correction, or take another objective"
    )


def _parts(c: ResolvedAlgorithm) -> str | None:
    """The updates of a batch go through all of its parts equally often."""
    if c.updates % c.minibatches == 0:
        return None
    near = max(1, round(c.updates / c.minibatches)) * c.minibatches
    return (
        f"algorithm.updates: {c.updates} is not a multiple of algorithm.minibatches ({c.minibatches}), so some parts "
        f"of a batch would be used more often than others: try {near}"
    )


def _constant(c: ResolvedAlgorithm) -> str | None:
    """The constant is read by the normalization of that name alone."""
    if c.normalization_constant is None or c.normalization == "constant":
        return None
    return (
        f"algorithm.normalization_constant: {c.normalization_constant} is not used with normalization "
        f"{c.normalization}: leave it out, or set algorithm.normalization to constant"
    )


RULES: tuple[Callable[[ResolvedAlgorithm], str | None], ...] = (
    _critic,
    _min_valid,
    _low,
    _dis_is_a_correction,
    _reinforce_once,
    _parts,
    _constant,
)


def tag(choice: Advantage | Objective | Correction) -> str:
    """The name of a choice, as `type` says it in a config."""
    return str(choice.__struct_config__.tag)
