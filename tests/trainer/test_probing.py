"""The learner's answer to the probe, on a model whose last layers take their keys and values from earlier ones."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

from moonmill.config import Config, EnvConfig, ModelConfig
from moonmill.trainer.models import load_policy
from moonmill.trainer.probing import likeliest_logprob
from tests.trainer.conftest import VOCAB
from tests.trainer.families import SHAPE

PROBE = [3, 1, 4, 1, 5, 9]


def test_it_is_what_the_model_says_by_itself(tmp_path: Path) -> None:
    torch.manual_seed(0)
    own = {"head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 4, "sliding_window": 4}
    layers = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}
    shape = Gemma4TextConfig(
        **SHAPE | own | layers,
        vocab_size_per_layer_input=VOCAB,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    Gemma4ForCausalLM(shape).save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = plain(input_ids=torch.tensor([PROBE])).logits[0, -1].log_softmax(-1).max().item()
    config = Config(EnvConfig("test-v0"), ModelConfig(str(tmp_path)))
    assert likeliest_logprob(load_policy(config), PROBE, config.model) == pytest.approx(expected, abs=1e-5)
