"""The section `algorithm` of a run's configuration. See `moonmill.config`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from moonmill.ranges import Count, Fraction, PositiveFloat, PositiveInt


class GaeConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="gae", tag_field="type"):
    """Skip-observation GAE, with a critic (SAO, arXiv 2607.07508)."""

    gamma: Fraction = 1.0
    """γ: how much a reward counts one action token earlier."""
    lam: Fraction | Literal["adaptive"] = "adaptive"
    """λ of the policy's advantages; `adaptive` is 1 − 1/(α·l), l the rollout's number of action tokens."""
    alpha: PositiveFloat = 1.5
    """α of the adaptive λ."""
    critic_lam: Fraction = 1.0
    """λ of the critic's targets; 1 is the Monte Carlo return."""
    normalize: bool = True
    """Scale the advantages of a batch to zero mean and unit variance over its action tokens."""
    bootstrap_truncated: bool = False
    """Continue a truncated episode's return with the critic's value instead of ending it at its reward."""


class GroupZscoreConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="group_zscore", tag_field="type"):
    """Reward minus the group's mean, over its standard deviation (GRPO, arXiv 2402.03300)."""

    group_size: Annotated[int, Meta(ge=2)] = 8
    """Rollouts of one task that are compared. `learner.batch_rollouts` is a multiple of it."""
    min_valid: Annotated[int, Meta(ge=2)] = 2
    """A group with failed members is kept while this many remain."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation, which is 0 where all rewards of a group are the same."""


class DisConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="dis", tag_field="type"):
    """Strict double-sided mask of the token ratio to the rollout policy (SAO)."""

    low: PositiveFloat = 0.3
    """Tokens count while 1 − low < ratio < 1 + high."""
    high: PositiveFloat = 5.0
    """See `low`."""


class PpoClipConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="ppo_clip", tag_field="type"):
    """PPO's clipped surrogate on the token ratio to the rollout policy (arXiv 1707.06347)."""

    low: PositiveFloat = 0.2
    """The ratio is clipped to 1 − low from below,"""
    high: PositiveFloat = 0.2
    """and to 1 + high from above."""


class CriticConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The learned critic: the policy's backbone with a value head, attention frozen."""

    lr: PositiveFloat = 5e-6
    """Learning rate of the critic."""
    updates: PositiveInt = 2
    """Value updates per policy update (K)."""
    warmup_steps: Count = 10
    """Learner steps at the start that train the critic alone. They make no new version, and come on top of
    `train.steps`."""
    freeze_attention: bool = True
    """Whether the critic trains its MLPs and value head alone, and all else stays as the policy's was at the start."""
    advantages: Literal["before_update", "after_update"] = "before_update"
    """Whether advantages use the critic's values from before or after the step's value updates. The paper does not say.
    After an update the critic has seen this batch's outcomes, which takes them out of the advantages; on the calculator
    example that halves what a step teaches."""


class AlgorithmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A preset, and what is to differ from it."""

    preset: Literal["sao", "grpo"] = "sao"
    """A vetted combination of the three below; [what each stands for](#presets)."""
    advantage: GaeConfig | GroupZscoreConfig | None = None
    """How much better than expected an action was; `null` takes the preset's."""
    objective: DisConfig | PpoClipConfig | None = None
    """What the policy's update maximises; `null` takes the preset's."""
    critic: CriticConfig | None = None
    """`null` takes the preset's; `grpo` has no critic."""
