"""The critic: where it starts, what of it is trained, and how its health is measured."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from moonmill.algorithm_config import CriticConfig, CriticLoraConfig, PretrainConfig
from moonmill.errors import ConfigError
from moonmill.trainer import critic_folder
from moonmill.trainer.attention import PACKED
from moonmill.trainer.critic import WholeCritic
from moonmill.trainer.critic_folder import CriticDescription
from moonmill.trainer.explained import Variance
from moonmill.trainer.learner import Learner, StepMetrics
from moonmill.trainer.models import Packed, load_policy
from moonmill.trainer.packing import pack
from moonmill.trainer.value_update import value_losses
from moonmill.trainer.warm_up import has_stopped_rising
from tests.trainer.conftest import MakeConfig, action, observation, rollout, sampled


@pytest.fixture
def policy(make_config: MakeConfig):
    return load_policy(make_config())


def batch_of(model_path: Path) -> Packed:
    (micro,) = pack(sampled(model_path, 0, 4), 10_000)
    return Packed(micro, PACKED, torch.device("cpu"))


def test_an_untrained_critic_says_zero(policy, model_path: Path):
    values, ends = WholeCritic(policy, CriticConfig())(batch_of(model_path))
    assert values.abs().max() == 0
    assert ends.tolist() == [0, 0, 0, 0]


def test_only_mlps_and_the_head_are_trained(policy):
    critic = WholeCritic(policy, CriticConfig())
    trained = {name for name, p in critic.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in critic.named_parameters() if ".mlp." in name or name.startswith("head.")}
    assert len(trained) == 2 * 3 + 2
    assert len(critic.trained()) == len(trained)


def test_with_attention_unfrozen_everything_is_trained(policy):
    assert all(p.requires_grad for p in WholeCritic(policy, CriticConfig(freeze_attention=False)).parameters())


def test_a_model_without_a_recognisable_mlp_is_refused(policy):
    for layer in policy.base_model.layers:
        del layer._modules["mlp"]
    with pytest.raises(ConfigError, match="freeze_attention"):
        WholeCritic(policy, CriticConfig())


def test_training_it_leaves_the_policy_and_its_own_attention_alone(make_config: MakeConfig, model_path: Path):
    learner = Learner(make_config(critic=CriticConfig(lr=1e-2, warmup_steps=5)))
    assert learner.critic is not None
    before = {n: p.clone() for n, p in learner.critic.named_parameters()}
    policy = {n: p.clone() for n, p in learner.policy.named_parameters()}
    learner.step(sampled(model_path, 0))
    after = dict(learner.critic.named_parameters())
    changed = {n for n, p in after.items() if not torch.equal(p, before[n])}
    assert changed == {n for n, p in after.items() if p.requires_grad}
    assert all(torch.equal(p, policy[n]) for n, p in learner.policy.named_parameters())


def test_it_sees_the_context_before_the_token_and_not_the_token(policy):
    critic = WholeCritic(policy, CriticConfig())
    nn.init.normal_(critic.head.weight)

    def value(last: int) -> float:
        (micro,) = pack([rollout(observation(1, 2), action(3, last))], 100)
        values, _ = critic(Packed(micro, PACKED, torch.device("cpu")))
        return float(values[-1].detach())

    assert value(4) == value(9)


def test_it_learns_to_predict_returns(make_config: MakeConfig, model_path: Path):
    learner = Learner(make_config(critic=CriticConfig(lr=3e-3, updates=4, warmup_steps=100)))
    rollouts = sampled(model_path, 2)
    first = learner.step(rollouts).metrics
    for _ in range(20):
        last = learner.step(rollouts).metrics
    assert first["explained_variance"] == pytest.approx(0)
    assert last["explained_variance"] > 0.8
    assert last["value_loss"] < first["value_loss"] / 4
    assert abs(last["value_bias"]) < abs(first["value_bias"])


def test_the_loss_by_hand():
    values, before, targets = torch.tensor([0.5, -0.4]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
    losses, outside = value_losses(values, before, targets, None)
    assert losses.tolist() == pytest.approx([0.125, 0.98])
    assert not outside.any()


def test_the_clipped_loss_by_hand():
    # From 0, clipped to 0.2, with a target of 1: what has moved to 0.5 counts as at 0.2, and has no gradient any more;
    # what has moved away counts as where it is, and is pulled back; what has moved little is as without.
    values = torch.tensor([0.5, -0.4, 0.1], requires_grad=True)
    losses, outside = value_losses(values, torch.zeros(3), torch.ones(3), 0.2)
    assert losses.tolist() == pytest.approx([0.5 * 0.64, 0.5 * 1.96, 0.5 * 0.81])
    assert outside.tolist() == [True, False, False]
    torch.autograd.backward(losses.sum())
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, -1.4, -0.9])


def test_clipping_changes_nothing_in_a_steps_first_update(make_config: MakeConfig, model_path: Path):
    heads = []
    for updates, clip in ((1, None), (1, 1e-6), (3, None), (3, 1e-6)):
        critic = CriticConfig(lr=1e-2, updates=updates, warmup_steps=5, value_clip=clip)
        learner = Learner(make_config(critic=critic))
        metrics = learner.step(sampled(model_path, 0)).metrics
        assert ("value_clipped_share" in metrics) == (clip is not None)
        assert learner.critic is not None
        heads.append(learner.critic.head.bias.detach().clone())
    assert torch.equal(heads[0], heads[1])
    assert abs(float(heads[3])) < abs(float(heads[2]))


def test_its_learning_rate_rises_over_learner_steps_and_falls_over_policy_updates(
    make_config: MakeConfig, model_path: Path
):
    critic = CriticConfig(lr=4e-3, updates=2, warmup_steps=3, lr_warmup_steps=2, schedule="linear")
    config = make_config(critic=critic)
    config = msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, steps=4))
    learner = Learner(config)
    rates = [learner.step(sampled(model_path, 0)).metrics["critic_lr"] for _ in range(7)]
    # The last update's of each step: two updates a step, so the rise is over four.
    assert rates == pytest.approx([2e-3, 4e-3, 4e-3, 4e-3, 3e-3, 2e-3, 1e-3])


def test_health_is_told_of_values_from_before_the_step(make_config: MakeConfig, model_path: Path):
    """An untrained critic says 0: its bias is minus the mean return, of each turn too; calibration lacks as much."""
    rollouts = sampled(model_path, 0)
    learner = Learner(make_config(critic=CriticConfig(lr=1e-2, warmup_steps=5)))
    metrics = learner.step(rollouts).metrics
    for turn in (1, 2):
        weights = [len(r.actions[turn - 1].tokens) for r in rollouts]
        mean = sum(w * (r.reward or 0.0) for w, r in zip(weights, rollouts, strict=True)) / sum(weights)
        assert metrics[f"value_bias_turn_{turn}"] == pytest.approx(-mean, rel=1e-5)
    assert metrics["value_calibration_error"] == pytest.approx(-metrics["value_bias"])
    assert metrics["explained_variance_smoothed"] == metrics["explained_variance"] == pytest.approx(0)
    second = learner.step(sampled(model_path, 1)).metrics
    parts = [(m["explained_variance"], m["return_std"] ** 2) for m in (metrics, second)]
    smoothed = 1 - sum((1 - e) * v for e, v in parts) / sum(v for _, v in parts)
    assert second["explained_variance_smoothed"] == pytest.approx(smoothed)


def test_pre_training_ends_when_explained_variance_has_stopped_rising_and_the_policy_is_trained_then(
    make_config: MakeConfig, model_path: Path
):
    pretrain = PretrainConfig(max_steps=60, window=3, patience=3)
    learner = Learner(make_config(critic=CriticConfig(lr=3e-3, updates=4, warmup_steps=0, pretrain=pretrain)))
    rollouts = sampled(model_path, 2)
    done = [learner.step(rollouts)]
    while not done[-1].updated:
        done.append(learner.step(rollouts))
    alone = done[:-1]
    assert 6 < len(alone) < 60
    assert [d.metrics["critic_ready"] for d in alone] == [0.0] * (len(alone) - 1) + [1.0]
    assert "critic_ready" not in done[-1].metrics
    # It can be told from the log alone.
    told = [Variance((1 - m["explained_variance"]) * m["return_std"] ** 2, m["return_std"] ** 2) for m in logged(alone)]
    assert [has_stopped_rising(told[:n], pretrain) for n in range(len(told) + 1)] == [False] * len(told) + [True]
    assert alone[-1].metrics["explained_variance"] > alone[0].metrics["explained_variance"] + 0.3


def logged(done: list[StepMetrics]) -> list[dict[str, float]]:
    """Metrics as `steps.jsonl` gives them back."""
    return [msgspec.json.decode(msgspec.json.encode(d.metrics), type=dict[str, float]) for d in done]


def test_pre_training_is_decided_alike_by_a_learner_that_comes_back(
    make_config: MakeConfig, model_path: Path, tmp_path: Path
):
    (tmp_path / "checkpoints").mkdir()
    pretrain = PretrainConfig(max_steps=60, window=2, patience=2, min_rise=0.05)
    config = make_config(critic=CriticConfig(lr=3e-3, updates=4, warmup_steps=0, pretrain=pretrain))
    straight, rollouts = Learner(config), sampled(model_path, 2)
    for _ in range(4):
        straight.step(rollouts)
    path = straight.checkpoint(tmp_path)
    resumed = Learner(config)
    resumed.restore(path)
    while not straight.version:
        one, other = straight.step(rollouts), resumed.step(rollouts)
        assert (one.version, one.metrics["explained_variance_smoothed"]) == (
            other.version,
            other.metrics["explained_variance_smoothed"],
        )
    assert resumed.version == 1


@pytest.mark.parametrize("lora", [None, CriticLoraConfig(r=4)], ids=["whole", "lora"])
def test_a_pre_trained_critic_begins_with_higher_explained_variance(
    make_config: MakeConfig, model_path: Path, tmp_path: Path, lora: CriticLoraConfig | None
):
    (tmp_path / "checkpoints").mkdir()
    critic = CriticConfig(lr=1e-2 if lora else 3e-3, updates=4, warmup_steps=100, lora=lora)
    first = Learner(make_config(critic=critic))
    for _ in range(15):
        first.step(sampled(model_path, 2))
    description = CriticDescription(str(model_path), lora, freeze_attention=True, steps=15, rollouts=120)
    critic_folder.write(first.checkpoint(tmp_path), tmp_path / "critic", description)

    begun = msgspec.structs.replace(critic, path=str(tmp_path / "critic"), warmup_steps=0)
    pretrained, fresh = (Learner(make_config(critic=c)) for c in (begun, critic))
    explained = [learner.step(sampled(model_path, 2)).metrics["explained_variance"] for learner in (pretrained, fresh)]
    assert explained[0] > 0.7
    assert explained[1] == pytest.approx(0)
    assert pretrained.version == 1


def test_a_critics_folder_that_does_not_fit_is_refused(make_config: MakeConfig, model_path: Path, tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    wanted = CriticConfig(warmup_steps=0, lora=CriticLoraConfig(r=4), path=str(tmp_path / "critic"))
    with pytest.raises(ConfigError, match=r"algorithm.critic.path: there is no folder .*pretrain-critic"):
        Learner(make_config(critic=wanted))
    path = Learner(make_config(critic=msgspec.structs.replace(wanted, path=""))).checkpoint(tmp_path)
    description = CriticDescription("other/model", wanted.lora, freeze_attention=True, steps=1, rollouts=8)
    critic_folder.write(path, tmp_path / "critic", description)
    Learner(make_config(critic=wanted))
    for lora, found in ((None, "all weights"), (CriticLoraConfig(r=4, alpha=1), "an adapter of r 4 and alpha 1")):
        with pytest.raises(ConfigError, match=f"holds an adapter of r 4 and alpha 32, and .* wants {found}"):
            Learner(make_config(critic=msgspec.structs.replace(wanted, lora=lora)))
    weights = tmp_path / "critic" / "critic.safetensors"
    save_file({"head.weight": torch.zeros(1, 3)}, weights)
    with pytest.raises(ConfigError, match=r"a critic of other/model, of another shape than one of model\.path"):
        Learner(make_config(critic=wanted))
    weights.write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="cannot be read"):
        Learner(make_config(critic=wanted))
    (tmp_path / "critic" / "critic.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"critic\.json cannot be read: Object missing required field"):
        Learner(make_config(critic=wanted))
