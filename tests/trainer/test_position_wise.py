"""Which parameters a critic trains, in many families of models: the projections of MLPs and experts, and nothing that
mixes tokens, whatever it is called."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from moonmill.algorithm_config import CriticConfig
from moonmill.errors import ConfigError
from moonmill.trainer.critic import WholeCritic
from moonmill.trainer.position_wise import position_wise, projections
from tests.trainer.families import MADE, SHAPE

GLU = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
SHARED = {f"mlp.shared_expert.{name}" for name in ("gate_proj", "up_proj", "down_proj")}
SHARED_EXPERTS = {name.replace("expert.", "experts.") for name in SHARED}
FEED_FORWARD = {name.replace("mlp", "feed_forward") for name in GLU}
TRAINED: dict[str, set[str]] = {
    # Dense.
    "gpt2": {"mlp.c_fc", "mlp.c_proj"},  # Attention has a `c_proj` as well.
    "opt": {"fc1", "fc2"},  # They stand in the layer itself.
    "gpt_neox": {"mlp.dense_h_to_4h", "mlp.dense_4h_to_h"},
    "phi3": {"mlp.gate_up_proj", "mlp.down_proj"},
    "bert": {"intermediate.dense", "output.dense"},  # And not `attention.output.dense`.
    "gemma4_text": GLU | {"per_layer_input_gate", "per_layer_projection"},
    # Experts, in one parameter for all or as modules, with routers and shared experts.
    "qwen2_moe": {"mlp.experts"} | SHARED,
    "gpt_oss": {"mlp.experts"},
    "jetmoe": {"mlp.input_linear", "mlp.output_linear"},  # Its attention has experts too.
    "deepseek_v3": GLU | {"mlp.experts"} | SHARED_EXPERTS,
    "llama4_text": FEED_FORWARD | {"feed_forward.experts"} | {n.replace("mlp", "feed_forward") for n in SHARED},
    # Linear attention, state spaces, convolutions and recurrences, beside attention or alone.
    "qwen3_next": {"mlp.experts"} | SHARED,
    "qwen3_5_text": GLU,
    "kimi_linear": GLU | {"mlp.experts"} | SHARED_EXPERTS,
    "minimax": {"mlp.experts"},
    "jamba": FEED_FORWARD | {"feed_forward.experts"},
    "falcon_h1": FEED_FORWARD,
    "granitemoehybrid": {"block_sparse_moe.experts", "shared_mlp.input_linear", "shared_mlp.output_linear"},
    # All of its layers are called `mixer`: one is a state space, one attention, one has experts, one is an MLP.
    "nemotron_h": {f"mixer.{name}" for name in ("experts", "shared_experts.up_proj", "shared_experts.down_proj")}
    | {"mixer.up_proj", "mixer.down_proj"},
    "recurrent_gemma": {f"mlp_block.{name}" for name in ("gate_proj", "up_proj", "down_proj")},
    "lfm2": {f"feed_forward.{name}" for name in ("w1", "w2", "w3")},
    # A whole layer of attention stands inside a layer of the state space; `linear` leads from the one into the other.
    "zamba": {f"shared_transf.feed_forward.{name}" for name in ("gate_proj", "up_proj", "down_proj")} | {"linear"},
    "xlstm": {f"ffn.{name}" for name in ("proj_up", "proj_up_gate", "proj_down")},
    # All of these is mixing; the feed-forward part of RWKV looks at the token before, too.
    "mamba": set(),
    "mamba2": set(),
    "rwkv": set(),
}
NOT_RUN = {"kimi_linear", "xlstm"}
"""Models so small cannot run without kernels of their own."""


def made(family: str) -> PreTrainedModel:
    torch.manual_seed(5)
    return MADE[family]().eval()


def short(path: str) -> str:
    """A path within its layer."""
    return re.split(r"\.\d+\.", path, maxsplit=1)[-1]


@pytest.mark.parametrize("family", list(TRAINED))
def test_what_is_trained_of_each_family(family: str):
    assert {short(path) for path in position_wise(made(family))} == TRAINED[family]


@pytest.mark.parametrize("family", [name for name, trained in TRAINED.items() if trained and name not in NOT_RUN])
def test_gradients_reach_what_is_trained_and_nothing_else(family: str):
    critic = WholeCritic(made(family), CriticConfig())
    hidden = critic.body()(input_ids=torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]), use_cache=False).last_hidden_state
    torch.autograd.backward(hidden.square().sum())
    names = {short(name) for name, p in critic.backbone.named_parameters() if p.grad is not None}
    assert {name.rpartition(".")[0] for name in names} == TRAINED[family]
    assert not [name for name in names if re.search("attn|attention|mamba|conv|norm|router|embed|lru", name)]


@pytest.mark.parametrize("family", ["mamba", "rwkv"])
def test_a_family_of_which_nothing_would_be_trained_is_refused_with_what_to_do(family: str):
    with pytest.raises(ConfigError) as refused:
        WholeCritic(made(family), CriticConfig())
    assert str(refused.value).startswith("algorithm.critic.freeze_attention: ")
    assert str(refused.value).endswith(
        " has no MLP that can be told from what mixes its tokens, so that all of it would be frozen: set it to false"
    )
    assert len(WholeCritic(made(family), CriticConfig(freeze_attention=False)).trained()) > 2


def test_all_projections_are_those_of_what_mixes_tokens_too():
    assert {short(path) for path in projections(made("qwen3_5_text"))} >= GLU | {
        "linear_attn.in_proj_qkv",
        "linear_attn.out_proj",
        "self_attn.q_proj",
    }


class Retention(nn.Module):
    """What a family that transformers does not know might have: named like nothing else, and told by its state."""

    def __init__(self) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor, decay: float = 0.9, incremental_state: Tensor | None = None) -> Tensor:
        kept = torch.zeros(1, 32) if incremental_state is None else incremental_state
        rows = []
        for row in self.inwards(x).unbind(1):
            kept = decay * kept + row
            rows.append(kept)
        return self.outwards(torch.stack(rows, 1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.RMSNorm(32)
        self.remember = Retention()
        self.think = nn.Sequential(nn.Linear(32, 48), nn.SiLU(), nn.Linear(48, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.remember(self.gain(x))
        return x + self.think(x)


class Foreign(PreTrainedModel):
    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(24, 32)
        self.stack = nn.ModuleList(Block() for _ in range(2))

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        x = self.words(input_ids)
        for block in self.stack:
            x = block(x)
        return x


def test_a_model_that_transformers_does_not_know_is_told_by_what_its_modules_are_called_with():
    assert set(position_wise(Foreign(LlamaConfig(**SHAPE)))) == {f"stack.{i}.think.{n}" for i in (0, 1) for n in (0, 2)}
