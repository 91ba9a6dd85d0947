"""A tiny model with a tokenizer, and a real engine that serves it.

Two versions of the same shape: the base is random, with attention that matters; `markov` knows nothing but which
token follows which, so that what it says greedily is known beforehand.
"""

import socket
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import torch
from anyio.from_thread import start_blocking_portal
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from moonmill.agents.compact import TAGS
from moonmill.agents.processes import ServerProcess

torch.set_num_threads(1)

MAX_LENGTH = 192
MAX_BATCH = 8
RANK = 8
"""Of the adapters."""
WORDS = ["<unknown>", *TAGS, "\n", *map(chr, range(32, 127))]
IDS = {word: i for i, word in enumerate(WORDS)}
SAYS = "12*34"
"""What `markov` answers to everything, as a call."""


def random_model(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def markov_weights(model: PreTrainedModel, says: str = SAYS) -> dict[str, torch.Tensor]:
    """Weights of a model in which every token has one successor, almost surely, so that it calls `says`."""
    weights = {name: torch.zeros_like(w) for name, w in model.state_dict().items()}
    successor = {"<call>": says[0], "</call>": "<end>", "<end>": "<end>", **dict(pairwise(says))}
    successor[says[-1]] = "</call>"
    for word, token in IDS.items():
        weights["model.embed_tokens.weight"][token, token] = 1.0
        weights["lm_head.weight"][IDS[successor.get(word, "<call>")], token] = 4.0
    for name, weight in weights.items():
        if "norm" in name:
            weight.fill_(1.0)
    return weights


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unknown>", extra_special_tokens=[*TAGS], eos_token=None
    ).save_pretrained(folder)
    (folder / "moonmill.json").write_text('{"renderer": "moonmill.agents.compact:CompactRenderer"}')
    return folder


@pytest.fixture(scope="session")
def markov_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("markov")
    save_file(markov_weights(random_model()), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full weights of another random model."""
    folder = tmp_path_factory.mktemp("other")
    save_file(random_model(seed=1).state_dict(), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters that change the base, each in another way."""
    folders = []
    for seed in range(3):
        model = random_model()
        torch.manual_seed(seed)
        config = LoraConfig(r=RANK, lora_alpha=16, init_lora_weights=False, target_modules="all-linear")
        folders.append(tmp_path_factory.mktemp("adapter"))
        get_peft_model(model, config).save_pretrained(folders[-1])
    return folders


def engine_argv(model_dir: Path, *more: str) -> list[str]:
    argv = [sys.executable, "-m", "moonmill.agents.engine", "--model", str(model_dir), "--served-name", "policy-v0"]
    return [*argv, "--max-length", str(MAX_LENGTH), "--port", "0", "--exit-with-stdin", *more]


@pytest.fixture(scope="session")
def engine(model_dir: Path, markov_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """An engine with the versions `policy-v0` (random) and `markov`."""
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    argv = engine_argv(model_dir, "--max-batch", str(MAX_BATCH), "--stream-interval", "4", "--can-sleep")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ServerProcess("engine", argv, log_path=log, start_timeout=120)) as process,
    ):
        body = {"lora_name": "markov", "lora_path": str(markov_dir)}
        httpx.post(f"{process.base_url}/v1/load_lora_adapter", json=body).raise_for_status()
        yield process


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> PreTrainedModel:
    """The base model, to be run by transformers alone."""
    return LlamaForCausalLM.from_pretrained(model_dir, attn_implementation="eager").eval()


@pytest.fixture
def unused_tcp_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
