"""A learner step: ratio 1 on unchanged weights, what it is divided by, determinism, the guard, and that it learns."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from moonmill.agents.engine.models import load_model, load_version
from moonmill.algorithm_config import AlgorithmConfig, CriticConfig, GaeConfig, GroupZscoreConfig
from moonmill.config import EngineConfig, LearnerConfig, LoraConfig
from moonmill.errors import ConfigError, RunError
from moonmill.trainer.learner import Learner
from moonmill.types import Action, Rollout, Sampling
from tests.trainer.conftest import MakeConfig, action, config_of, observation, plain_logprobs, rollout, sampled

GRPO = AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=4))
Weights = dict[str, torch.Tensor]
of_all_weights_or_an_adapter = pytest.mark.parametrize("lora", [None, LoraConfig(r=4, alpha=8)], ids=["full", "lora"])


def weights(learner: Learner) -> Weights:
    return {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}


def difference(a: Weights, b: Weights) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def gradients(learner: Learner, rollouts: Sequence[Rollout]) -> tuple[Weights, dict[str, float]]:
    """What a step accumulates for the policy, before anything is clipped, and its metrics."""
    found: Weights = {}
    for name, parameter in learner.policy.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: found.update({name: p.grad.clone()}))
    metrics = learner.step(rollouts).metrics
    return found, metrics


def with_logprobs(rollouts: Sequence[Rollout], logprob: float) -> list[Rollout]:
    """The same rollouts, every action token with this behaviour log-probability."""
    return [
        msgspec.structs.replace(
            r,
            segments=tuple(
                Action(s.tokens, (logprob,) * len(s.tokens), s.versions) if isinstance(s, Action) else s
                for s in r.segments
            ),
        )
        for r in rollouts
    ]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.9), Sampling(temperature=1.3, top_p=0.8, top_k=9)],
    ids=["T=1", "T=0.7", "top_p=0.9", "all"],
)
@of_all_weights_or_an_adapter
def test_on_unchanged_weights_every_ratio_is_one(
    make_config: MakeConfig, model_path: Path, sampling: Sampling, lora: LoraConfig | None
):
    metrics = Learner(make_config(sampling=sampling, lora=lora)).step(sampled(model_path, 1, sampling=sampling)).metrics
    assert metrics["mismatch_max"] < 1e-5
    assert metrics["logprob_diff_max"] < 1e-5
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["masked_share"] == 0
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)


def test_mismatch_is_measured_on_tokens_of_the_current_version_alone(make_config: MakeConfig, model_path: Path):
    learner = Learner(make_config())
    learner.step(sampled(model_path, 1))
    metrics = learner.step(sampled(model_path, 2)).metrics
    assert "mismatch_max" not in metrics
    assert metrics["logprob_diff_max"] > 1e-4


def test_the_gradient_is_that_of_the_loss_over_the_batchs_action_tokens(make_config: MakeConfig, model_path: Path):
    """Two rollouts of a group, advantages ±√½, ratios 1: d/dθ of −Σ Â·logπ over all 5 action tokens.

    The first has an observation between its actions, the second one at its end: they have no part in the loss.
    """
    parts = [(1, 2), (3,), (9, 10), (4,)], [(5,), (6, 7, 8), (11, 12)]
    acted = [(2, 5), (1, 2, 3)]
    made = []
    for index, (rows, at) in enumerate(zip(parts, acted, strict=True)):
        logprobs = [0.0, *plain_logprobs(model_path, [t for row in rows for t in row], Sampling()).tolist()]
        own = iter([logprobs[i] for i in at])
        segments = [
            Action(row, tuple(next(own) for _ in row), (0,) * len(row)) if place % 2 else observation(*row)
            for place, row in enumerate(rows)
        ]
        made.append(rollout(*segments, reward=float(index), id=str(index), group="g"))
    advantage = GroupZscoreConfig(group_size=2, epsilon=1e-12)
    group = AlgorithmConfig("grpo", advantage=advantage, normalization="token")
    config = make_config(algorithm=group, learner=LearnerConfig(batch_rollouts=2, lr=1e-9, max_grad_norm=1e9))

    reference = Learner(config).policy
    reference.set_attn_implementation("eager")
    loss = torch.zeros(())
    for rows, at, advantage in zip(parts, acted, (-(0.5**0.5), 0.5**0.5), strict=True):
        tokens = torch.tensor([t for row in rows for t in row])
        logprobs = reference(input_ids=tokens.unsqueeze(0)).logits[0].log_softmax(-1)
        loss = loss - advantage * sum(logprobs[i - 1, tokens[i]] for i in at) / 5
    torch.autograd.backward(loss)
    norm = torch.stack([p.grad.norm() for p in reference.parameters()]).norm()

    metrics = Learner(config).step(made).metrics
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert metrics["policy_loss"] == pytest.approx(-(3 - 2) * 0.5**0.5 / 5, rel=1e-4)


@pytest.mark.parametrize("algorithm", [None, GRPO], ids=["sao", "grpo"])
def test_how_a_batch_is_cut_and_ordered_does_not_change_the_update(
    make_config: MakeConfig, model_path: Path, algorithm: AlgorithmConfig | None
):
    rollouts = sampled(model_path, 3, group_size=4)
    results = []
    for budget, batch in ((10_000, rollouts), (60, rollouts), (1, rollouts), (10_000, rollouts[::-1])):
        learner_config = LearnerConfig(batch_rollouts=8, lr=1e-3, micro_batch_tokens=budget)
        results.append(gradients(Learner(make_config(algorithm=algorithm, learner=learner_config)), batch))
    cuts = [metrics["micro_batches"] for _, metrics in results]
    assert cuts[0] == 1 < cuts[1] < cuts[2] == 8
    expected, metrics = results[0]
    assert max(float(g.abs().max()) for g in expected.values()) > 0.01
    for got, other in results[1:]:
        assert difference(got, expected) < 1e-5
        assert other["policy_loss"] == pytest.approx(metrics["policy_loss"], abs=1e-5)
        if algorithm is None:
            assert other["critic_grad_norm"] == pytest.approx(metrics["critic_grad_norm"], rel=1e-4)


def test_masked_tokens_stay_in_the_denominator(make_config: MakeConfig, model_path: Path):
    """Of two equal rollouts, one's tokens are all masked: the gradient is half of what it is when both count."""
    one = sampled(model_path, 4, 1)[0]
    other = with_logprobs([one], -50.0)[0]
    config = make_config(critic=CriticConfig(lr=1e-12, warmup_steps=0), advantage=GaeConfig(normalize=False, lam=1.0))
    config = msgspec.structs.replace(config, learner=LearnerConfig(batch_rollouts=2, max_grad_norm=1e9))
    both = Learner(config).step([one, one]).metrics
    masked = Learner(config).step([one, other]).metrics
    assert masked["masked_share"] == 0.5
    assert masked["grad_norm"] == pytest.approx(both["grad_norm"] / 2, rel=1e-3)


@of_all_weights_or_an_adapter
def test_the_same_steps_give_the_same_bits(make_config: MakeConfig, model_path: Path, lora: LoraConfig | None):
    one, two = Learner(make_config(lora=lora)), Learner(make_config(lora=lora))
    for seed in range(3):
        a, b = one.step(sampled(model_path, seed)), two.step(sampled(model_path, seed))
        assert {k: v for k, v in a.metrics.items() if "seconds" not in k} == {
            k: v for k, v in b.metrics.items() if "seconds" not in k
        }
    assert difference(weights(one), weights(two)) == 0


def test_value_warm_up_makes_no_version(make_config: MakeConfig, model_path: Path):
    learner = Learner(make_config(critic=CriticConfig(lr=1e-3, warmup_steps=2)))
    start = weights(learner)
    done = []
    for seed in range(3):
        if seed == 2:
            assert difference(weights(learner), start) == 0
        done.append(learner.step(sampled(model_path, seed)))
    assert [(d.step, d.version, d.updated) for d in done] == [(1, 0, False), (2, 0, False), (3, 1, True)]
    assert "policy_loss" not in done[0].metrics
    assert difference(weights(learner), start) > 0


def test_the_learning_rate_rises_over_its_warm_up(make_config: MakeConfig, model_path: Path):
    learner = Learner(make_config(learner=LearnerConfig(batch_rollouts=8, lr=4e-4, warmup_steps=4)))
    rates = [learner.step(sampled(model_path, 0)).metrics["lr"] for _ in range(6)]
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 4e-4, 4e-4])


def test_the_learning_rate_falls_over_the_runs_policy_updates(make_config: MakeConfig, model_path: Path):
    config = make_config(learner=LearnerConfig(batch_rollouts=8, lr=4e-4, warmup_steps=2, schedule="linear"))
    config = msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, steps=6))
    learner = Learner(config)
    rates = [learner.step(sampled(model_path, 0)).metrics["lr"] for _ in range(6)]
    assert rates == pytest.approx([2e-4, 4e-4, 4e-4, 3e-4, 2e-4, 1e-4])


def test_metrics_are_finite_numbers_also_where_rewards_do_not_vary(make_config: MakeConfig, model_path: Path):
    same = [msgspec.structs.replace(r, reward=1.0) for r in sampled(model_path, 0)]
    metrics = Learner(make_config()).step(same).metrics
    assert "explained_variance" not in metrics
    assert msgspec.json.decode(msgspec.json.encode(metrics), type=dict[str, float]) == metrics


def test_advantages_before_or_after_the_critics_update(make_config: MakeConfig, model_path: Path):
    """An untrained critic says 0, so before its update the advantages are the returns themselves."""
    rollouts = sampled(model_path, 0)
    returns = sum(r.reward * r.action_tokens for r in rollouts) / sum(r.action_tokens for r in rollouts)
    metrics = {
        when: Learner(
            make_config(critic=CriticConfig(lr=1e-2, warmup_steps=0, advantages=when), advantage=GaeConfig(lam=1.0))
        )
        .step(rollouts)
        .metrics
        for when in ("before_update", "after_update")
    }
    assert metrics["before_update"]["advantage_mean"] == pytest.approx(returns)
    assert metrics["after_update"]["advantage_mean"] != pytest.approx(returns)


def test_a_truncated_episode_is_bootstrapped_where_that_is_asked_for(make_config: MakeConfig, model_path: Path):
    rollouts = sampled(model_path, 0)
    means = []
    for bootstrap in (False, True):
        learner = Learner(make_config(advantage=GaeConfig(lam=1.0, bootstrap_truncated=bootstrap)))
        assert learner.critic is not None
        torch.nn.init.constant_(learner.critic.head.bias, 2.0)
        means.append(learner.step(rollouts).metrics["value_bias"])
    # Every fourth rollout is truncated and its targets gain about 2; nobody else's change.
    share = sum(r.action_tokens for r in rollouts[3::4]) / sum(r.action_tokens for r in rollouts)
    assert means[0] - means[1] == pytest.approx(2 * share, rel=1e-5)


def test_a_group_mode_needs_groups(make_config: MakeConfig):
    learner = Learner(make_config(algorithm=GRPO))
    with pytest.raises(RunError, match="belongs to no group"):
        learner.step([rollout(observation(1), action(2))])


@pytest.mark.parametrize("algorithm", [None, GRPO], ids=["sao", "grpo"])
@of_all_weights_or_an_adapter
def test_it_learns_what_is_rewarded(
    make_config: MakeConfig, model_path: Path, algorithm: AlgorithmConfig | None, lora: LoraConfig | None
):
    """One token after a fixed prompt; half the vocabulary is good. On-policy, from single rollouts or groups."""
    learner_config = LearnerConfig(batch_rollouts=32, lr=3e-2 if lora else 3e-3)
    learner = Learner(
        make_config(
            algorithm=algorithm, lora=lora, critic=CriticConfig(lr=3e-3, warmup_steps=1), learner=learner_config
        )
    )
    draw = torch.Generator().manual_seed(0)
    success = []
    for _ in range(25):
        with torch.no_grad():
            learner.policy.set_attn_implementation("eager")
            logprobs = learner.policy(input_ids=torch.tensor([[1, 2]])).logits[0, -1].log_softmax(-1)
            learner.policy.set_attn_implementation("moonmill_packed")
        tokens = torch.multinomial(logprobs.exp(), 32, replacement=True, generator=draw).tolist()
        batch = [
            rollout(
                observation(1, 2),
                Action((t,), (float(logprobs[t]),), (learner.version,)),
                reward=float(t % 2),
                id=str(i),
                group=str(i // 4),
            )
            for i, t in enumerate(tokens)
        ]
        success.append(sum(t % 2 for t in tokens) / 32)
        learner.step(batch)
    assert success[0] < 0.75
    assert sum(success[-3:]) / 3 > 0.9


def test_exported_weights_are_what_the_engine_loads(make_config: MakeConfig, model_path: Path, tmp_path: Path):
    learner = Learner(make_config())
    learner.step(sampled(model_path, 0))
    folder = tmp_path / "v000001"
    learner.export(folder)
    assert [f.name for f in folder.iterdir()] == ["model.safetensors"]
    version = load_version(load_model(str(model_path), "float32", "cpu"), folder)
    assert difference(weights(learner), version.state_dict()) == 0
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")


def test_a_missing_model_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        Learner(config_of(tmp_path))


def test_a_step_that_does_not_fit_into_memory_is_told_with_what_to_lower(
    make_config: MakeConfig, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(make_config())

    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nAnd so on")

    monkeypatch.setattr(learner, "_learn", full)
    with pytest.raises(RunError) as told:
        learner.step(sampled(model_path, 0))
    assert str(told.value) == (
        "step 1 does not fit into the memory of cpu: lower learner.micro_batch_tokens (16384), or set "
        "learner.gradient_checkpointing to true, then --resume. (CUDA out of memory. Tried to allocate 2.00 GiB.)"
    )
    shared = make_config(learner=LearnerConfig(gradient_checkpointing=True))
    shared = msgspec.structs.replace(shared, engine=EngineConfig(type="vllm"))
    monkeypatch.setattr(learner, "_config", shared)
    monkeypatch.setattr("moonmill.trainer.learner.shares_card", lambda config: True)
    assert "or lower engine.vllm.gpu_memory (0.9), the engine's share of that GPU" in learner._out_of_memory(
        torch.OutOfMemoryError("full")
    )
