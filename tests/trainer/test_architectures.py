"""The learner's parts on the families of models they are meant for: tiny ones, made at random."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    BigBirdConfig,
    BigBirdForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from moonmill.algorithm_config import CriticConfig
from moonmill.config import Config, EnvConfig, ModelConfig
from moonmill.errors import ConfigError
from moonmill.trainer.attention import PACKED, refuse_mixing
from moonmill.trainer.critic import WholeCritic
from moonmill.trainer.models import Packed, action_logprobs, load_policy
from moonmill.trainer.packing import pack
from moonmill.types import Rollout, Sampling
from tests.trainer.conftest import VOCAB, action, observation, rollout
from tests.trainer.families import MADE, SHAPE

GLU = {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}
EXPERTS = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}
FAMILIES: dict[str, tuple[Callable[[], PreTrainedModel], set[str]]] = {
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)), GLU),
    "qwen3": (lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)), GLU),
    # Layers that look back no further than 4 tokens, and norms that are named after the feed-forward part.
    "gemma3": (
        lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"])
        ),
        GLU,
    ),
    # Experts, with a router beside them.
    "mixtral": (lambda: MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=4)), EXPERTS),
}


UNFIT: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    # State spaces and attention; the former are not told what the latter are.
    "hybrid": (MADE["jamba"], "carry more than attention"),
    "mamba": (MADE["mamba"], "MambaForCausalLM"),
    # An encoder, unless told otherwise.
    "looks ahead": (
        lambda: BigBirdForCausalLM(BigBirdConfig(**SHAPE, attention_type="original_full")),
        "tokens see those after them",
    ),
    "capped scores": (lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8)), "softcap"),
}


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def policy(family: str) -> PreTrainedModel:
    torch.manual_seed(11)
    return FAMILIES[family][0]().eval()


def turns(sizes: tuple[int, ...] = (1, 2, 3, 4, 7, 10)) -> list[Rollout]:
    """Rollouts of two turns, each four times such a size in tokens and one more."""
    draw = torch.Generator().manual_seed(2)
    made = []
    for size in sizes:
        parts = torch.randint(1, VOCAB, (4, size), generator=draw).tolist()
        prompt, first, answer, second = parts
        made.append(rollout(observation(1, *prompt), action(*first), observation(*answer), action(*second)))
    return made


def packed(rollouts: list[Rollout]) -> Packed:
    (batch,) = pack(rollouts, 10_000)
    return Packed(batch, PACKED, torch.device("cpu"))


def with_attention(model: PreTrainedModel, implementation: str) -> PreTrainedModel:
    model.set_attn_implementation(implementation)
    return model


def test_packed_log_probabilities_are_those_of_each_rollout_alone(policy: PreTrainedModel):
    rollouts = turns()
    alone = []
    with torch.no_grad():
        for r in rollouts:
            tokens = [t for s in r.segments for t in s.tokens]
            logits = with_attention(policy, "eager")(input_ids=torch.tensor([tokens])).logits[0]
            size = len(r.actions[0].tokens)
            at = [*range(size, 2 * size), *range(3 * size, 4 * size)]
            alone.append(logits[at].log_softmax(-1))
        batch = packed(rollouts)
        together, entropy = action_logprobs(with_attention(policy, PACKED), batch, Sampling())
    everything = torch.cat(alone)
    sampled = everything.gather(-1, batch.batch.sampled.unsqueeze(-1)).squeeze(-1)
    assert float((together - sampled).abs().max()) < 1e-5
    assert float((entropy - torch.special.entr(everything.exp()).sum(-1)).abs().max()) < 1e-5


def test_the_critic_trains_the_projections_of_mlps_and_its_head_and_nothing_else(policy: PreTrainedModel, family: str):
    critic = WholeCritic(with_attention(policy, PACKED), CriticConfig())
    torch.nn.init.normal_(critic.head.weight)
    values, ends = critic(packed(turns()))
    torch.autograd.backward(values.square().sum() + ends.square().sum())
    reached = {name for name, p in critic.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    expected = {f"backbone.layers.{layer}.{name}" for layer in range(2) for name in FAMILIES[family][1]}
    assert reached == expected | {"head.weight", "head.bias"}
    assert len(critic.trained()) == len(reached)


def test_the_critic_starts_at_zero_on_a_copy_of_the_policy(policy: PreTrainedModel):
    critic = WholeCritic(with_attention(policy, PACKED), CriticConfig())
    values, ends = critic(packed(turns()))
    assert values.count_nonzero() == ends.count_nonzero() == 0
    own, copied = dict(policy.base_model.named_parameters()), dict(critic.backbone.named_parameters())
    assert all(torch.equal(p, copied[name]) and p is not copied[name] for name, p in own.items())


def test_without_freezing_the_critic_trains_every_parameter(policy: PreTrainedModel):
    critic = WholeCritic(policy, CriticConfig(freeze_attention=False))
    assert len(critic.trained()) == len(list(critic.parameters()))


def test_their_rollouts_do_not_see_each_other(policy: PreTrainedModel):
    refuse_mixing(with_attention(policy, PACKED))


@pytest.mark.parametrize("name", list(UNFIT))
def test_models_that_cannot_be_packed_are_refused_when_they_are_loaded(name: str, tmp_path: Path):
    make, words = UNFIT[name]
    torch.manual_seed(1)
    make().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=words):
        load_policy(Config(EnvConfig("test-v0"), ModelConfig(str(tmp_path))))
