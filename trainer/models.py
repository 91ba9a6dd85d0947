"""Loading the policy for training, and its weights in and out of folders, bit for bit."""

import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from moonmill.config import ModelConfig
from moonmill.errors import ConfigError
from moonmill.trainer.attention import IMPLEMENTATION

WEIGHTS = "model.safetensors"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_NOT_COPIED = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".msgpack", ".h5")


def load_policy(config: ModelConfig) -> PreTrainedModel:
    """The policy to start from, with packed attention.

    Raises:
        ConfigError: the folder holds no model.
    """
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            config.path, dtype=_DTYPES[config.dtype], attn_implementation=IMPLEMENTATION
        )
    except (OSError, ValueError) as e:
        raise ConfigError(f"model.path: cannot load a model from {config.path}: {str(e).splitlines()[0]}") from e
    # Dropout would make the learner's log-probabilities differ from the engine's.
    return model.to(config.device).eval()


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write all weights to `folder/model.safetensors`. Whoever sees the folder sees it whole."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    write_tensors(model, temporary / WEIGHTS)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def write_tensors(model: nn.Module, file: Path) -> None:
    """The model's state in one file; a tensor that stands under two names is written once."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach().contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    with open(file, "rb") as written:
        os.fsync(written.fileno())


def read_tensors(model: nn.Module, file: Path) -> None:
    """The inverse of `write_tensors`, into a model of the same shape."""
    model.load_state_dict(load_file(file), strict=False)


def copy_companions(source: str, target: Path) -> None:
    """Copy what belongs to a model besides its weights: config, tokenizer, chat format."""
    folder = Path(source)
    if folder.is_dir():
        for file in folder.iterdir():
            if file.is_file() and file.suffix not in _NOT_COPIED and "index.json" not in file.name:
                shutil.copy2(file, target / file.name)
