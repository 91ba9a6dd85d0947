"""The section `algorithm` of a run's configuration. See `moonmill.config`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from moonmill.ranges import BelowOne, Count, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Schedule


class GaeConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="gae", tag_field="type"):
    """Generalised advantage estimation, with a critic (arXiv 1506.02438; skip-observation: SAO, arXiv 2607.07508)."""

    gamma: Fraction = 1.0
    """γ: how much a reward counts one step earlier."""
    lam: Fraction | Literal["adaptive"] = "adaptive"
    """λ of the policy's advantages; `adaptive` is 1 − 1/(α·l), l the rollout's number of steps."""
    alpha: PositiveFloat = 1.5
    """α of the adaptive λ."""
    critic_lam: Fraction = 1.0
    """λ of the critic's targets; 1 is the Monte Carlo return."""
    normalize: bool = True
    """Scale the advantages of a batch to zero mean and unit variance over its action tokens."""
    bootstrap_truncated: bool = False
    """Continue a truncated episode's return with the critic's value instead of ending it at its reward."""
    skip_observations: bool = True
    """A step is an action token, and observations take none. `false`: every token from the first action on is a step,
    observations too, as in GAE for one turn; the critic then learns a value before each of them. To compare with."""


class GroupZscoreConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="group_zscore", tag_field="type"):
    """Reward minus the group's mean, over its standard deviation (GRPO, arXiv 2402.03300)."""

    group_size: Annotated[int, Meta(ge=2)] = 8
    """Rollouts of one task that are compared. `learner.batch_rollouts` is a multiple of it."""
    min_valid: Annotated[int, Meta(ge=2)] = 2
    """A group with failed members is kept while this many remain."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation, which is 0 where all rewards of a group are the same."""


class GroupMeanConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="group_mean", tag_field="type"):
    """Reward minus the group's mean, and no more (Dr. GRPO, arXiv 2503.20783)."""

    group_size: Annotated[int, Meta(ge=2)] = 8
    """Rollouts of one task that are compared. `learner.batch_rollouts` is a multiple of it."""
    min_valid: Annotated[int, Meta(ge=2)] = 2
    """A group with failed members is kept while this many remain."""


class RlooConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="rloo", tag_field="type"):
    """Reward minus the mean of the group's others (REINFORCE leave-one-out, arXiv 2402.14740)."""

    group_size: Annotated[int, Meta(ge=2)] = 4
    """Rollouts of one task that are compared. `learner.batch_rollouts` is a multiple of it."""
    min_valid: Annotated[int, Meta(ge=2)] = 2
    """A group with failed members is kept while this many remain."""


class RunningMeanConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="running_mean", tag_field="type"):
    """Reward minus the mean of its task's last rewards, from single rollouts and without a critic. It wants tasks that
    come back; one that was never seen is compared with the other rollouts of its batch. A task is told by the id its
    author gave it, else by its prompt and answer."""

    last: PositiveInt = 8
    """So many rewards of a task are remembered; they go into the checkpoints."""
    normalize: bool = True
    """Scale the advantages of a batch to zero mean and unit variance over its action tokens."""


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
    """and to 1 + high from above; more than `low` is DAPO's clip-higher."""
    dual: Annotated[float, Meta(gt=1)] | None = None
    """Dual clip (arXiv 1912.09729): where the advantage is negative, the loss of a token is at most this many times its
    size, however far the ratio has run away. `null` has no such bound."""


class CispoConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="cispo", tag_field="type"):
    """The policy gradient of every token, weighted with its truncated ratio to the rollout policy (CISPO, MiniMax-M1,
    arXiv 2506.13585)."""

    low: PositiveFloat | None = None
    """Weights are at least 1 − low; `null` has no such bound, as published."""
    high: PositiveFloat = 4.0
    """Weights are at most 1 + high."""


class GspoConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="gspo", tag_field="type"):
    """The clipped surrogate on one ratio for each rollout, the geometric mean of its tokens' (GSPO, arXiv
    2507.18071)."""

    low: PositiveFloat = 3e-4
    """The rollout's ratio is clipped to 1 − low from below,"""
    high: PositiveFloat = 4e-4
    """and to 1 + high from above."""


class DecoupledPpoConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="decoupled_ppo", tag_field="type"):
    """PPO's clip around a proximal policy, weighted with that one's ratio to the rollout policy (arXiv 2110.00641;
    AReaL, arXiv 2505.24298)."""

    low: PositiveFloat = 0.2
    """The ratio to the proximal policy is clipped to 1 − low from below,"""
    high: PositiveFloat = 0.2
    """and to 1 + high from above."""
    proximal: Literal["exact", "interpolated"] = "exact"
    """The proximal policy: `exact` is the one before the batch's updates, which takes one more forward pass where
    `updates` is above 1; `interpolated` is guessed between the rollout's and the current one, by their versions."""


class ReinforceConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="reinforce", tag_field="type"):
    """The plain policy gradient: every token counts in full, however old it is."""


class NoCorrectionConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="none", tag_field="type"):
    """The log-probabilities of the engine are taken as they are."""


class TisConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="tis", tag_field="type"):
    """Truncated importance sampling: the loss is weighted with the ratio of the learner's to the engine's probability,
    truncated from above (fengyao.notion.site/off-policy-rl)."""

    level: Literal["token", "sequence"] = "token"
    """Whose ratio: each token's own, or for all tokens of a rollout the product of theirs."""
    cap: PositiveFloat = 2.0
    """The weight is at most this. Its authors' scripts have 2 for a model of 0.5B, and 8 for one of 32B."""


class IcepopConfig(Struct, frozen=True, forbid_unknown_fields=True, tag="icepop", tag_field="type"):
    """Masked importance sampling: the loss is weighted with the same ratio, and what lies outside a band is dropped
    (IcePop, ringtech.notion.site/icepop; the band is that of Ring-1T, arXiv 2510.18855)."""

    level: Literal["token", "sequence"] = "token"
    """Whose ratio: each token's own, or for all tokens of a rollout the product of theirs."""
    low: BelowOne = 0.5
    """What is below is dropped,"""
    high: Annotated[float, Meta(gt=1)] = 5.0
    """and what is above."""


class KlConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A penalty on the policy's divergence from the initial policy, token by token. It takes a forward pass of that one
    for each batch and, without `model.lora`, a second copy of the model."""

    coef: NonNegativeFloat
    """What the penalty is multiplied by. 0 is none, and nothing is computed."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How it is estimated from the sampled tokens, with d = log π − log π_initial: `k1` is d, `k2` is d²/2, `k3` is
    exp(−d) − 1 + d, as in GRPO. `k1` and `k2` pull with the same gradient, d·∇log π."""


class CriticLoraConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A low-rank adapter with which the critic is trained in place of all of its weights."""

    r: PositiveInt = 16
    """Rank of the adapter."""
    alpha: PositiveFloat = 32.0
    """What the adapter adds is scaled by alpha / r."""


class PretrainConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """When the critic has learned what it can of the initial policy: once its explained variance, smoothed over the
    last `window` steps, has not risen by `min_rise` for `patience` steps."""

    max_steps: PositiveInt = 200
    """Most learner steps it takes, each of `learner.batch_rollouts` rollouts."""
    window: PositiveInt = 10
    """Steps the explained variance is smoothed over: that of a single batch is noisy."""
    patience: PositiveInt = 10
    """Steps without a rise after which it ends."""
    min_rise: NonNegativeFloat = 0.01
    """Less than this above the best before counts as no rise."""


class CriticConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The learned critic: the policy's backbone with a value head, attention frozen."""

    lr: PositiveFloat = 5e-6
    """Learning rate of the critic."""
    updates: PositiveInt = 2
    """Value updates per policy update (K)."""
    schedule: Schedule = "constant"
    """What becomes of `lr` over the policy updates of the run, `train.steps`: it stays, or falls to 0 in a straight
    line or half a cosine. It does not fall before the first policy update."""
    lr_warmup_steps: Count = 0
    """Learner steps at the start over which the learning rate rises linearly to `lr`."""
    warmup_steps: Count = 10
    """Learner steps at the start that train the critic alone. They make no new version, and come on top of
    `train.steps`."""
    pretrain: PretrainConfig | None = None
    """Train the critic alone for longer, until its explained variance stops rising; `warmup_steps` is then the least.
    `null` goes by `warmup_steps` alone."""
    path: str = ""
    """The folder of a critic to begin with, as `moonmill pretrain-critic` writes it, of the same model. It is looked
    for beside the config. Empty begins with the policy's own weights and a value head of zeros."""
    lora: CriticLoraConfig | None = None
    """Train an adapter in place of all weights: on the projections of MLPs and experts, beside a value head. With
    `model.lora` it stands on the policy's own base, so that the critic takes megabytes; without, on a frozen copy of
    the initial model in `model.dtype`. It wants a `lr` about ten times as high. `{}` takes the defaults there."""
    freeze_attention: bool = True
    """Whether the critic trains its MLPs and value head alone, and all else stays as the policy's was at the start: all
    that mixes tokens (attention of every kind, linear attention, state spaces), embeddings, norms, and the routers of
    experts."""
    value_clip: PositiveFloat | None = None
    """A value that has moved further than this from where it was before the step's updates gains nothing by moving on,
    as in PPO: the larger is taken of its own loss and that of the value clipped to this distance. `null` clips
    nothing."""
    advantages: Literal["before_update", "after_update"] = "before_update"
    """Whether advantages use the critic's values from before or after the step's value updates. The paper does not say.
    After an update the critic has seen this batch's outcomes, which takes them out of the advantages; on the calculator
    example that halves what a step teaches."""


Advantage = GaeConfig | GroupZscoreConfig | GroupMeanConfig | RlooConfig | RunningMeanConfig
Objective = DisConfig | PpoClipConfig | CispoConfig | GspoConfig | DecoupledPpoConfig | ReinforceConfig
Correction = NoCorrectionConfig | TisConfig | IcepopConfig
Normalization = Literal["token", "sequence", "constant"]


class AlgorithmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A preset, and what is to differ from it. Not everything goes with everything:
    [what does, and why not](#what-goes-together)."""

    preset: Literal["sao", "grpo", "dr_grpo", "dapo", "rloo", "cispo", "gspo", "areal"] = "sao"
    """A vetted combination of what follows; [what each stands for](#presets)."""
    advantage: Advantage | None = None
    """How much better than expected an action was; `null` takes the preset's."""
    objective: Objective | None = None
    """What the policy's update maximises; `null` takes the preset's."""
    correction: Correction | None = None
    """What is done where learner and engine disagree about a token's probability, be it by numerics or because it is
    old. With one, the objective's own ratio is that to the learner's policy before the batch's updates, and the rest of
    the way to the rollout policy is the correction's. `null` takes the preset's."""
    normalization: Normalization | None = None
    """What the loss is divided by: `token` is the number of the batch's action tokens; `sequence` is each rollout's own
    number, then that of the rollouts, so that long ones do not count more; `constant` is the number of rollouts times
    `normalization_constant`. `null` takes the preset's."""
    normalization_constant: PositiveInt | None = None
    """Tokens of a rollout that `normalization: constant` divides by; `null` is `model.max_length`."""
    kl: KlConfig | None = None
    """`null` is no penalty."""
    entropy_coef: NonNegativeFloat = 0.0
    """What the policy's entropy at the action tokens is multiplied by to be maximised beside the objective."""
    updates: PositiveInt | None = None
    """Policy updates from one batch; together they make one version. `null` takes the preset's."""
    minibatches: PositiveInt | None = None
    """Into how many parts a batch is cut, in its order; the updates take one after the other. With 1 each is of the
    whole batch (PPO's epochs). `updates` is a multiple of it. `null` takes the preset's."""
    staleness_scaling: NonNegativeFloat = 0.0
    """The advantages of a rollout are divided by (1 + s)^this, s being the versions between its oldest token and the
    policy: 1 is the rule of staleness-aware SGD (arXiv 1511.05950), 0 leaves them as they are."""
    critic: CriticConfig | None = None
    """`null` takes the preset's; only the advantage `gae` has one."""
