"""The policy's updates on a real tiny model: what a token weighs, several updates from a batch, the reference, entropy,
staleness, running means."""

from pathlib import Path

import msgspec
import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from moonmill.algorithm_config import (
    AlgorithmConfig,
    DecoupledPpoConfig,
    GaeConfig,
    GroupZscoreConfig,
    IcepopConfig,
    KlConfig,
    NoCorrectionConfig,
    PpoClipConfig,
    ReinforceConfig,
    RunningMeanConfig,
    TisConfig,
)
from moonmill.config import LearnerConfig, LoraConfig
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm
from moonmill.trainer.attention import PACKED
from moonmill.trainer.learner import Learner
from moonmill.trainer.models import Packed, action_logprobs, load_policy
from moonmill.trainer.packing import pack
from moonmill.types import Action, Rollout, Sampling
from tests.trainer.conftest import MakeConfig, sampled
from tests.trainer.test_learner import difference, weights
from tests.trainer.test_objectives import NORMALIZATIONS
from tests.trainer.updates import ADVANTAGES, CPU, REINFORCE, STILL, VERSION, Updates, stale


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_the_gradient_is_that_of_the_normalised_loss(kind: str, make_config: MakeConfig, model_path: Path):
    """REINFORCE, written out with transformers' own attention, one rollout at a time."""
    rollouts = sampled(model_path, 3)
    algorithm = ResolvedAlgorithm(GroupZscoreConfig(), ReinforceConfig(), normalization=kind, normalization_constant=20)
    got = Updates(algorithm, make_config(learner=STILL))(rollouts, ADVANTAGES)
    reference = load_policy(make_config())
    reference.set_attn_implementation("eager")
    for rollout, advantage in zip(rollouts, ADVANTAGES, strict=True):
        tokens = torch.tensor([t for s in rollout.segments for t in s.tokens])
        acted = torch.tensor([isinstance(s, Action) for s in rollout.segments for _ in s.tokens]).nonzero().squeeze(1)
        logprobs = reference(input_ids=tokens.unsqueeze(0)).logits[0].log_softmax(-1)
        of_tokens = logprobs[acted - 1, tokens[acted]] * advantage * (1 - torch.arange(len(acted)) % 2 / 2)
        divided = {
            "token": sum(r.action_tokens for r in rollouts),
            "sequence": 8 * len(acted),
            "constant": 8 * 20,
        }[kind]
        torch.autograd.backward(-of_tokens.sum() / divided)
    expected = {name: p.grad for name, p in reference.named_parameters()}
    assert difference(got, expected) < 1e-5


def test_parts_of_a_batch_are_taken_in_turn(make_config: MakeConfig, model_path: Path):
    """Two updates of two parts are, to the last bit, those of each part alone, one after the other."""
    rollouts = sampled(model_path, 3)
    config = make_config(learner=LearnerConfig(batch_rollouts=8, lr=1e-2))
    both = Updates(ResolvedAlgorithm(GroupZscoreConfig(), PpoClipConfig(), updates=2, minibatches=2), config)
    both(rollouts, ADVANTAGES, parts=2)
    single = Updates(ResolvedAlgorithm(GroupZscoreConfig(), PpoClipConfig()), config)
    single(rollouts[:4], ADVANTAGES[:4])
    single(rollouts[4:], ADVANTAGES[4:])
    assert difference(both.policy.state_dict(), single.policy.state_dict()) == 0
    assert both.metrics["masked_share"] > 0


def test_a_part_is_weighed_as_a_batch_of_its_own(make_config: MakeConfig, model_path: Path):
    rollouts = sampled(model_path, 3)
    parts = Updates(
        ResolvedAlgorithm(GroupZscoreConfig(), ReinforceConfig(), updates=2, minibatches=2), make_config(learner=STILL)
    )
    last = parts(rollouts, ADVANTAGES, parts=2, budget=40)
    alone = Updates(REINFORCE, make_config(learner=STILL))(rollouts[4:], ADVANTAGES[4:])
    assert difference(last, alone) < 1e-6


@pytest.mark.parametrize("correction", [NoCorrectionConfig(), TisConfig()], ids=["none", "tis"])
def test_the_exact_proximal_policy_is_the_one_before_the_batchs_updates(
    correction, make_config: MakeConfig, model_path: Path
):
    """The first update measures against itself, and clips nothing however stale the tokens are; the second clips."""
    rollouts = stale(sampled(model_path, 3))
    config = make_config(learner=LearnerConfig(batch_rollouts=8, lr=1e-2))
    objective = DecoupledPpoConfig(low=1e-4, high=1e-4)
    shares = []
    for count in (1, 2):
        updates = Updates(
            ResolvedAlgorithm(GroupZscoreConfig(), objective, correction=correction, updates=count), config
        )
        updates(rollouts, ADVANTAGES)
        shares.append(updates.metrics["masked_share"])
    assert shares[0] == 0
    assert shares[1] > 0.25


def test_tokens_count_as_fresh_in_the_first_update_alone(make_config: MakeConfig, model_path: Path):
    rollouts = [
        msgspec.structs.replace(
            r,
            segments=tuple(
                Action(s.tokens, s.logprobs, (VERSION,) * len(s.tokens)) if isinstance(s, Action) else s
                for s in r.segments
            ),
        )
        for r in sampled(model_path, 3)
    ]
    algorithm = ResolvedAlgorithm(GroupZscoreConfig(), PpoClipConfig(), updates=3)
    updates = Updates(algorithm, make_config(learner=LearnerConfig(batch_rollouts=8, lr=1e-2)))
    updates(rollouts, ADVANTAGES)
    assert updates.metrics["mismatch_max"] < 1e-5 < updates.metrics["logprob_diff_max"]


def test_a_rollouts_advantages_are_divided_by_its_staleness(make_config: MakeConfig, model_path: Path):
    rollouts = stale(sampled(model_path, 3, 1))
    oldest = rollouts[0].oldest_version
    assert oldest is not None
    config = make_config(learner=STILL)
    plain = Updates(REINFORCE, config)(rollouts, [1.0])
    scaling = Updates(msgspec.structs.replace(REINFORCE, staleness_scaling=1.0), config)
    scaled = scaling(rollouts, [1.0])
    weight = 1 / (1 + VERSION - oldest)
    assert scaling.metrics["staleness_scale"] == pytest.approx(weight)
    assert weight < 1
    assert difference({name: g * weight for name, g in plain.items()}, scaled) < 1e-6


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.7, top_k=9)], ids=["all", "truncated"])
def test_the_entropy_bonus_is_the_gradient_of_the_entropy(
    sampling: Sampling, make_config: MakeConfig, model_path: Path
):
    rollouts = sampled(model_path, 3, sampling=sampling)
    config = make_config(learner=STILL, sampling=sampling)
    algorithm = msgspec.structs.replace(REINFORCE, entropy_coef=0.5)
    updates = Updates(algorithm, config)
    got = updates(rollouts, [0.0] * 8)
    assert updates.metrics["entropy_bonus"] == 0.5 * updates.metrics["entropy"] > 0
    policy = load_policy(config)
    [batch] = pack(rollouts, 10_000)
    packed = Packed(batch, PACKED, CPU)
    logits = policy(**packed.inputs, logits_to_keep=batch.before).logits[0]
    from moonmill.agents.engine.sampling import processed_logprobs

    logprobs = processed_logprobs(logits, 1.0, sampling.top_p, sampling.top_k, keep=batch.sampled)
    probabilities = logprobs.exp()
    entropy = -(probabilities * torch.where(probabilities > 0, logprobs, 0.0)).sum(-1)
    torch.autograd.backward(-0.5 * entropy.mean())
    assert difference(got, {name: p.grad for name, p in policy.named_parameters()}) < 1e-5


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4, alpha=8)], ids=["full", "lora"])
def test_the_reference_stays_the_initial_policy(
    lora: LoraConfig | None, make_config: MakeConfig, model_path: Path, tmp_path: Path
):
    grpo = AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=4), kl=KlConfig(0.01))
    config = make_config(algorithm=grpo, lora=lora, learner=LearnerConfig(batch_rollouts=8, lr=1e-2))
    learner = Learner(config)
    first = learner.step(sampled(model_path, 0, group_size=4)).metrics
    assert first["kl_reference"] == pytest.approx(0, abs=1e-6)
    second = learner.step(sampled(model_path, 1, group_size=4)).metrics
    assert second["kl_reference"] > 1e-3

    initial = load_policy(config)
    [batch] = pack(sampled(model_path, 2), 10_000)
    packed = Packed(batch, PACKED, CPU)
    with torch.no_grad():
        before = action_logprobs(learner.policy, packed, Sampling())[0]
        reference = learner._policy_update._reference
        assert reference is not None
        found = reference.logprobs(packed, Sampling())
        assert torch.equal(found, action_logprobs(initial, packed, Sampling())[0])
        assert torch.equal(action_logprobs(learner.policy, packed, Sampling())[0], before)

    (tmp_path / "checkpoints").mkdir()
    saved = learner.checkpoint(tmp_path)
    resumed = Learner(config)
    resumed.restore(saved)
    one, other = (x.step(sampled(model_path, 3, group_size=4)).metrics for x in (learner, resumed))
    assert one["kl_reference"] == other["kl_reference"] > 1e-3
    assert difference(weights(learner), weights(resumed)) == 0


def test_a_reference_of_an_adapter_leaves_everything_as_it_was(make_config: MakeConfig, model_path: Path):
    grpo = AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=4), kl=KlConfig(0.01))
    learner = Learner(make_config(algorithm=grpo, lora=LoraConfig(r=4, alpha=8)))
    trained = {name: p.requires_grad for name, p in learner.policy.named_parameters()}
    learner.step(sampled(model_path, 0, group_size=4))
    assert {name: p.requires_grad for name, p in learner.policy.named_parameters()} == trained
    layers = [m for m in learner.policy.modules() if isinstance(m, BaseTunerLayer)]
    assert layers
    assert not any(layer.disable_adapters for layer in layers)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_penalty_brings_the_policy_back(estimator: str, make_config: MakeConfig, model_path: Path):
    """Pushed away by a few steps without regard to it, then with nothing else to do but go back."""
    rollouts = sampled(model_path, 3)
    config = make_config(learner=LearnerConfig(batch_rollouts=8, lr=2e-3))
    updates = Updates(msgspec.structs.replace(REINFORCE, kl=KlConfig(1.0, estimator)), config)
    for _ in range(3):
        updates(rollouts, [a * 20 for a in ADVANTAGES])
    updates(rollouts, [0.0] * 8)
    away = updates.metrics["kl_reference"]
    for _ in range(25):
        updates(rollouts, [0.0] * 8)
    assert updates.metrics["kl_reference"] < away / 4


def test_a_penalty_of_nothing_costs_nothing(make_config: MakeConfig, model_path: Path):
    updates = Updates(msgspec.structs.replace(REINFORCE, kl=KlConfig(0.0)), make_config(learner=STILL))
    updates(sampled(model_path, 3), ADVANTAGES)
    assert updates.update._reference is None
    assert "kl_reference" not in updates.metrics


def test_the_effective_sample_size_is_that_of_the_token_ratios(make_config: MakeConfig, model_path: Path):
    fresh = sampled(model_path, 3)
    updates = Updates(REINFORCE, make_config(learner=STILL))
    updates(fresh, ADVANTAGES)
    assert updates.metrics["ess"] == pytest.approx(1.0, abs=1e-5)
    # Half of the tokens twice as likely as they were: (n/2·(1 + 2))² / (n·n/2·(1 + 4)) = 0.9.
    doubled = [
        msgspec.structs.replace(
            r,
            segments=tuple(
                Action(s.tokens, tuple(p - 0.6931471805599453 for p in s.logprobs), s.versions)
                if isinstance(s, Action)
                else s
                for s in r.segments
            ),
        )
        for r in fresh
    ]
    updates([*fresh, *doubled], ADVANTAGES * 2)
    assert updates.metrics["ess"] == pytest.approx(0.9, abs=1e-4)


def test_running_means_come_back_from_a_checkpoint_to_the_last_bit(
    make_config: MakeConfig, model_path: Path, tmp_path: Path
):
    config = make_config(
        algorithm=AlgorithmConfig("sao", advantage=RunningMeanConfig(last=3)),
        learner=LearnerConfig(batch_rollouts=8, lr=1e-3),
    )

    def batch(seed: int) -> list[Rollout]:
        return [
            msgspec.structs.replace(r, task=msgspec.structs.replace(r.task, id=f"task {i % 3}"), index=seed * 8 + i)
            for i, r in enumerate(sampled(model_path, seed))
        ]

    straight = Learner(config)
    for seed in range(3):
        straight.step(batch(seed))
    (tmp_path / "checkpoints").mkdir()
    saved = straight.checkpoint(tmp_path)
    ahead = [straight.step(batch(seed)).metrics for seed in (3, 4)]
    resumed = Learner(config)
    resumed.restore(saved)
    # The order in which a batch is handed over does not decide what is remembered.
    again = [resumed.step(batch(seed)).metrics for seed in (3, 4)]
    for one, other in zip(ahead, again, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }
    assert difference(weights(straight), weights(resumed)) == 0
    assert straight.critic is None


def test_what_is_remembered_of_tasks_does_not_depend_on_the_order_of_a_batch(make_config: MakeConfig, model_path: Path):
    config = make_config(algorithm=AlgorithmConfig("sao", advantage=RunningMeanConfig(last=3)))
    rollouts = [msgspec.structs.replace(r, index=i) for i, r in enumerate(sampled(model_path, 0))]
    one, other = Learner(config), Learner(config)
    one.step(rollouts)
    other.step(rollouts[::-1])
    assert one._outcomes is not None
    assert other._outcomes is not None
    assert one._outcomes.state_dict() == other._outcomes.state_dict() != {}


@pytest.mark.parametrize(
    "algorithm",
    [
        AlgorithmConfig("gspo", advantage=GroupZscoreConfig(group_size=4)),
        AlgorithmConfig("areal", advantage=GroupZscoreConfig(group_size=4)),
        AlgorithmConfig("dr_grpo", kl=KlConfig(0.01), entropy_coef=0.01, staleness_scaling=1.0),
        AlgorithmConfig("rloo", correction=IcepopConfig(level="sequence")),
        AlgorithmConfig("sao", advantage=RunningMeanConfig()),
        AlgorithmConfig("sao", advantage=GaeConfig(), updates=2),
    ],
    ids=["gspo", "areal", "dr_grpo", "rloo", "running_mean", "sao twice"],
)
def test_the_same_steps_give_the_same_bits_and_one_version_each(
    algorithm: AlgorithmConfig, make_config: MakeConfig, model_path: Path
):
    config = make_config(algorithm=algorithm, learner=LearnerConfig(batch_rollouts=8, lr=1e-3))
    size = 8 if algorithm.preset == "dr_grpo" else 4
    one, other = Learner(config), Learner(config)
    warmup = one._value_update.config.warmup_steps if one._value_update else 0
    for seed in range(3):
        a = one.step(sampled(model_path, seed, group_size=size))
        b = other.step(sampled(model_path, seed, group_size=size))
        assert a.version == b.version == max(0, seed + 1 - warmup)
    assert difference(weights(one), weights(other)) == 0
