"""A critic that is an adapter: on the policy's own base, or on a frozen copy of the initial model."""

import time
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from moonmill.algorithm_config import CriticConfig, CriticLoraConfig
from moonmill.config import Config, LearnerConfig, LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.critic import AdaptedCritic, WholeCritic, places_of
from moonmill.trainer.learner import Learner
from moonmill.trainer.lora import Adapter, SideAdapter
from moonmill.trainer.models import action_logprobs
from moonmill.types import Sampling
from tests.trainer.conftest import MakeConfig, sampled
from tests.trainer.test_architectures import packed, turns
from tests.trainer.test_lora import made

LORA = LoraConfig(r=4, alpha=8)
SIDE = CriticLoraConfig(r=2, alpha=4)
CRITIC = CriticConfig(lr=1e-2, warmup_steps=0, lora=SIDE)
on_either_base = pytest.mark.parametrize("lora", [LORA, None], ids=["shared", "own"])


def critic_of(learner: Learner) -> AdaptedCritic:
    assert isinstance(learner.critic, AdaptedCritic)
    return learner.critic


def bytes_of(*modules: nn.Module) -> int:
    """Of all parameters of some modules and their adapters, each counted once."""
    tensors: dict[int, Tensor] = {}
    for module in modules:
        bodies = (module, module.body()) if isinstance(module, AdaptedCritic) else (module,)
        tensors |= {p.data_ptr(): p for body in bodies for p in body.parameters()}
    return sum(p.numel() * p.element_size() for p in tensors.values())


def copies(critic: AdaptedCritic) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in critic.tensors().items()}


def in_bfloat16(config: Config) -> Config:
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, dtype="bfloat16"))


# What it takes


def test_it_costs_its_adapter_and_head_alone_beside_an_adapted_policy(make_config: MakeConfig) -> None:
    alone = Learner(make_config(lora=LORA, critic=CriticConfig(warmup_steps=0)))
    shared = Learner(make_config(lora=LORA, critic=CRITIC))
    critic = critic_of(shared)
    assert critic.body() is shared.policy.base_model
    # In each of 2 layers, rank 2 on gate and up (32 → 48) and down (48 → 32); the head is 32 → 1.
    own = 4 * (2 * 3 * 2 * (32 + 48) + 32 + 1)
    assert sum(p.numel() * p.element_size() for p in critic.trained()) == own
    assert isinstance(alone.critic, WholeCritic)
    policy = bytes_of(alone.policy)
    assert bytes_of(shared.policy, critic) == policy + own
    # A whole one copies the base. (Its output head is tied, so that it is all in the backbone.)
    adapter, head = sum(p.numel() * 4 for p in alone._weights.parameters), 4 * (32 + 1)
    assert bytes_of(alone.policy, alone.critic) == 2 * policy - adapter + head
    assert own < 0.1 * policy


def test_beside_a_policy_of_which_all_is_trained_it_stands_on_a_copy_in_the_models_dtype(
    make_config: MakeConfig, model_path: Path
) -> None:
    learner = Learner(in_bfloat16(make_config(critic=CRITIC)))
    critic = critic_of(learner)
    frozen = [p for p in critic.body().parameters() if not p.requires_grad]
    assert {p.dtype for p in frozen} == {torch.bfloat16}
    assert {p.dtype for p in critic.trained()} == {torch.float32}
    start = [p.clone() for p in frozen]
    policy = [p.clone() for p in learner.policy.parameters()]
    learner.step(sampled(model_path, 0))
    assert all(torch.equal(a, b) for a, b in zip(start, frozen, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(policy, learner.policy.parameters(), strict=True))


def test_with_bfloat16_the_base_is_kept_in_it_and_what_is_trained_is_not(
    make_config: MakeConfig, model_path: Path
) -> None:
    learner = Learner(in_bfloat16(make_config(lora=LORA, critic=CRITIC)))
    critic = critic_of(learner)
    trained = {id(p) for p in (*critic.trained(), *learner._weights.parameters)}
    assert {p.dtype for p in learner.policy.parameters() if id(p) not in trained} == {torch.bfloat16}
    assert {p.dtype for p in (*critic.trained(), *learner._weights.parameters)} == {torch.float32}
    metrics = learner.step(sampled(model_path, 1)).metrics
    assert metrics["critic_grad_norm"] > 0
    assert metrics["grad_norm"] > 0


# Where it is put


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_it_is_put_on_the_projections_of_mlps_and_never_on_attention(family: str) -> None:
    model = made(family)
    places = places_of(model, CRITIC)
    side = Adapter(model, LORA, "owner/base", 0).beside(places, SIDE, 1)
    on = {name.partition(".lora_")[0] for name in side.parameters}
    assert on == {f"layers.{i}.mlp.{n}_proj" for i in (0, 1) for n in ("gate", "up", "down")}


def test_with_attention_not_frozen_it_is_put_on_all_projections() -> None:
    model = made("llama")
    places = places_of(model, CriticConfig(lora=SIDE, freeze_attention=False))
    side = Adapter(model, LORA, "owner/base", 0).beside(places, SIDE, 1)
    on = {name.partition(".lora_")[0].rpartition(".")[2] for name in side.parameters}
    assert on == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize("shared", [True, False])
def test_fused_experts_are_adapted_too(shared: bool) -> None:
    model, batch = made("mixtral"), packed(turns())
    if shared:
        places = places_of(model, CRITIC)
        adapter = Adapter(model, LoraConfig(r=4, target_modules=("q_proj", "v_proj")), "owner/base", 0)
        side = adapter.beside(places, SIDE, 1)
    else:
        side = SideAdapter(model.base_model, places_of(model.base_model, CRITIC), SIDE, 1)
    critic = AdaptedCritic(model, side)
    nn.init.normal_(critic.head.weight)
    assert {name.partition(".experts")[0] for name in side.parameters} == {"layers.0.mlp", "layers.1.mlp"}
    with critic.at_work():
        before, _ = critic(batch)
        with torch.no_grad():
            for parameter in side.parameters.values():
                parameter.add_(0.05)
        after, _ = critic(batch)
        torch.autograd.backward(after.sum())
    assert not torch.equal(before, after)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in critic.trained())
    assert not [name for name, p in model.named_parameters() if p.grad is not None and ".critic." not in name]


# The two do not see each other


@on_either_base
def test_it_begins_as_nothing(make_config: MakeConfig, lora: LoraConfig | None, model_path: Path) -> None:
    adapted = Learner(make_config(lora=lora, critic=CRITIC))
    whole = Learner(make_config(lora=lora, critic=CriticConfig(lr=1e-2, warmup_steps=0)))
    values = []
    for learner in (adapted, whole):
        assert learner.critic is not None
        nn.init.constant_(learner.critic.head.weight, 0.1)
        with learner.critic.at_work(), torch.no_grad():
            values.append(learner.critic(packed(turns()))[0])
    assert torch.allclose(values[0], values[1], atol=1e-6)


def test_each_adapter_leaves_the_others_results_as_they_are(make_config: MakeConfig) -> None:
    learner = Learner(make_config(lora=LORA, critic=CRITIC))
    critic, batch = critic_of(learner), packed(turns())
    nn.init.normal_(critic.head.weight)

    def both() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            logprobs, _ = action_logprobs(learner.policy, batch, Sampling())
            with critic.at_work():
                return logprobs, critic(batch)[0]

    logprobs, values = both()
    with torch.no_grad():
        for parameter in critic.trained():
            parameter.add_(0.1)
    logprobs_after, values_after = both()
    assert torch.equal(logprobs, logprobs_after)
    assert not torch.equal(values, values_after)
    with torch.no_grad():
        for parameter in learner._weights.parameters:
            parameter.add_(0.1)
    logprobs, values = both()
    assert torch.equal(values, values_after)
    assert not torch.equal(logprobs, logprobs_after)


def test_gradients_reach_the_adapter_at_work_and_no_other(make_config: MakeConfig) -> None:
    learner = Learner(make_config(lora=LORA, critic=CRITIC))
    critic, batch = critic_of(learner), packed(turns())
    nn.init.normal_(critic.head.weight)
    with torch.no_grad():
        for parameter in (*critic.trained(), *learner._weights.parameters):
            parameter.add_(0.05)
    with critic.at_work():
        torch.autograd.backward(critic(batch)[0].sum())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in critic.trained())
    assert all(p.grad is None for p in learner._weights.parameters)
    for parameter in critic.trained():
        parameter.grad = None
    torch.autograd.backward(action_logprobs(learner.policy, batch, Sampling())[0].sum())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learner._weights.parameters)
    assert all(p.grad is None for p in critic.trained())
    trained = {id(p) for p in (*critic.trained(), *learner._weights.parameters)}
    assert not [n for n, p in learner.policy.named_parameters() if p.grad is not None and id(p) not in trained]


def test_the_policys_adapter_is_back_also_after_a_failure(make_config: MakeConfig) -> None:
    learner = Learner(make_config(lora=LORA, critic=CRITIC))
    critic, batch = critic_of(learner), packed(turns())
    with torch.no_grad():
        for parameter in (*critic.trained(), *learner._weights.parameters):
            parameter.add_(0.1)
        expected = action_logprobs(learner.policy, batch, Sampling())[0]
        with pytest.raises(ZeroDivisionError), critic.at_work():
            raise ZeroDivisionError
        assert torch.equal(action_logprobs(learner.policy, batch, Sampling())[0], expected)


def test_a_policy_is_trained_as_it_is_beside_a_whole_critic(make_config: MakeConfig, model_path: Path) -> None:
    """During the first step both critics say 0, so that the advantages are the same: so is the update."""
    policies = []
    for critic in (CRITIC, CriticConfig(lr=1e-2, warmup_steps=0)):
        learner = Learner(make_config(lora=LORA, critic=critic))
        learner.step(sampled(model_path, 0))
        policies.append([p.detach().clone() for p in learner._weights.parameters])
    assert all(torch.equal(a, b) for a, b in zip(*policies, strict=True))


def test_switching_costs_little_of_a_step(make_config: MakeConfig, model_path: Path) -> None:
    learner = Learner(make_config(lora=LORA, critic=CRITIC))
    rollouts = sampled(model_path, 0, 32)
    learner.step(rollouts)
    begin = time.perf_counter()
    learner.step(rollouts)
    step = time.perf_counter() - begin
    begin = time.perf_counter()
    with critic_of(learner).at_work():
        pass
    # Of a model this small it is most: the larger the model, the less.
    assert time.perf_counter() - begin < 0.2 * step


# What is written


@on_either_base
def test_a_checkpoint_holds_its_adapter_and_head_alone(
    make_config: MakeConfig, model_path: Path, tmp_path: Path, lora: LoraConfig | None
) -> None:
    (tmp_path / "checkpoints").mkdir()
    learner = Learner(make_config(lora=lora, critic=CRITIC))
    learner.step(sampled(model_path, 0))
    path = learner.checkpoint(tmp_path)
    saved = load_file(path / "critic.safetensors")
    assert {name for name in saved if not name.startswith("adapter.layers.")} == {"head.weight", "head.bias"}
    assert all(".lora_A." in name or ".lora_B." in name for name in saved if name.startswith("adapter."))
    assert len(saved) == 2 * 3 * 2 + 2
    policy = load_file(next((path / "policy").glob("*.safetensors")))
    assert not [name for name in policy if "critic" in name or ("mlp" not in name and name in saved)]
    export = tmp_path / "v"
    learner.export(export)
    assert load_file(next(export.glob("*.safetensors"))).keys() == policy.keys()


@on_either_base
def test_going_on_from_a_checkpoint_is_bit_exact(
    make_config: MakeConfig, model_path: Path, tmp_path: Path, lora: LoraConfig | None
) -> None:
    (tmp_path / "checkpoints").mkdir()
    config = make_config(lora=lora, critic=msgspec.structs.replace(CRITIC, warmup_steps=1))
    straight, path = Learner(config), tmp_path
    for seed in range(4):
        straight.step(sampled(model_path, seed))
        if seed == 1:
            path = straight.checkpoint(tmp_path)
    resumed = Learner(config)
    resumed.restore(path)
    for seed in (2, 3):
        resumed.step(sampled(model_path, seed))
    expected, got = copies(critic_of(straight)), copies(critic_of(resumed))
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    policies = (learner.policy.state_dict() for learner in (straight, resumed))
    assert all(torch.equal(a, b) for a, b in zip(*(p.values() for p in policies), strict=True))


@on_either_base
def test_the_same_steps_give_the_same_bits(make_config: MakeConfig, model_path: Path, lora: LoraConfig | None) -> None:
    torch.manual_seed(1)
    one = Learner(make_config(lora=lora, critic=CRITIC))
    torch.manual_seed(2)
    two = Learner(make_config(lora=lora, critic=CRITIC))
    for seed in range(2):
        a, b = one.step(sampled(model_path, seed)), two.step(sampled(model_path, seed))
        assert {k: v for k, v in a.metrics.items() if "seconds" not in k} == {
            k: v for k, v in b.metrics.items() if "seconds" not in k
        }
    first, second = copies(critic_of(one)), copies(critic_of(two))
    assert all(torch.equal(first[name], second[name]) for name in first)


@on_either_base
def test_it_learns_to_predict_returns(make_config: MakeConfig, model_path: Path, lora: LoraConfig | None) -> None:
    critic = CriticConfig(lr=1e-2, updates=4, warmup_steps=100, lora=CriticLoraConfig(r=8))
    learner = Learner(make_config(lora=lora, critic=critic))
    rollouts = sampled(model_path, 2)
    first = learner.step(rollouts).metrics
    for _ in range(25):
        last = learner.step(rollouts).metrics
    assert first["explained_variance"] == pytest.approx(0)
    assert last["explained_variance"] > 0.8


def test_a_model_without_mlps_is_refused_with_advice_that_fits() -> None:
    model = made("llama")
    for layer in model.base_model.layers:
        del layer._modules["mlp"]
    with pytest.raises(ConfigError, match="no MLP that can be told from what mixes its tokens"):
        places_of(model, CRITIC)


def test_its_optimizer_holds_state_for_what_it_trains_alone(
    make_config: MakeConfig, model_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    learner = Learner(make_config(lora=LORA, critic=CRITIC, learner=LearnerConfig(batch_rollouts=8, lr=1e-3)))
    learner.step(sampled(model_path, 0))
    saved = torch.load(learner.checkpoint(tmp_path) / "optimizers.pt", weights_only=True)
    assert len(saved["critic"]["optimizer"]["adam"]["state"]) == len(critic_of(learner).trained()) == 14
    assert len(saved["policy"]["adam"]["state"]) == len(learner._weights.parameters) == 28
