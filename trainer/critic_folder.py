"""The folder of a critic that was trained beforehand: written from a checkpoint, read by a run that begins with it.

    critic.safetensors   its weights, or with `critic.lora` its adapter and head alone
    critic.json          what it was made of, and how far it came

What always holds: the folder is whole or not there; only a critic of the same shape is loaded.
"""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from moonmill.algorithm_config import CriticConfig, CriticLoraConfig
from moonmill.errors import ConfigError, MoonmillError
from moonmill.trainer.checkpoint import flush

if TYPE_CHECKING:
    from moonmill.trainer.critic import Critic

WEIGHTS = "critic.safetensors"
_DESCRIPTION = "critic.json"
_KEY = "algorithm.critic.path"


class CriticDescription(Struct, frozen=True):
    """What `critic.json` says."""

    model: str
    """The model whose values it tells: a path or hub id."""
    lora: CriticLoraConfig | None
    """Of its adapter; null where all weights are there."""
    freeze_attention: bool
    """Whether all but its MLPs is as it was in the model."""
    steps: int
    """Learner steps it was trained for,"""
    rollouts: int
    """on so many rollouts of the model."""
    explained_variance: float | None = None
    """At the end, smoothed."""


def describe(path: str) -> CriticDescription:
    """What a critic's folder holds.

    Raises:
        ConfigError: it is none.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"{_KEY}: there is no folder {path}: `moonmill pretrain-critic` writes one")
    try:
        description = msgspec.json.decode((folder / _DESCRIPTION).read_bytes(), type=CriticDescription)
    except FileNotFoundError as e:
        raise ConfigError(f"{_KEY}: {path} is not a critic's folder: it has no {_DESCRIPTION}") from e
    except (OSError, msgspec.MsgspecError) as e:
        raise ConfigError(f"{_KEY}: {folder / _DESCRIPTION} cannot be read: {e}") from e
    if not (folder / WEIGHTS).is_file():
        raise ConfigError(f"{_KEY}: {path} has no {WEIGHTS}")
    return description


def check_critic(critic: CriticConfig) -> None:
    """Refuse a folder that holds another kind of critic than the config wants. Raises `ConfigError`."""
    found = describe(critic.path).lora
    if found != critic.lora:
        raise ConfigError(
            f"{_KEY}: {critic.path} holds {_kind(found)}, and algorithm.critic.lora wants {_kind(critic.lora)}: set it "
            "to what the critic was made with"
        )


def load_critic(critic: "Critic", config: CriticConfig) -> None:
    """Give a critic the weights of the folder its config names.

    Raises:
        ConfigError: they are another model's, or cannot be read.
    """
    from safetensors import SafetensorError

    from moonmill.trainer.weights import load_tensors

    check_critic(config)
    file = Path(config.path, WEIGHTS)
    try:
        load_tensors(critic.tensors(), file)
    except ValueError as e:
        raise ConfigError(
            f"{_KEY}: {file} holds a critic of {describe(config.path).model}, of another shape than one of model.path"
        ) from e
    except (OSError, SafetensorError) as e:
        raise ConfigError(f"{_KEY}: {file} cannot be read: {e}") from e


def require_free(folder: Path) -> None:
    """Refuse a place where a critic cannot be written to. Raises `ConfigError`."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--out: {folder} is there already: choose another folder, or remove it")
    except OSError as e:
        raise ConfigError(f"--out: {folder} cannot be a folder: {e.strerror}") from e


def write(checkpoint: Path, folder: Path, description: CriticDescription) -> None:
    """Write the critic of a checkpoint to a folder of its own.

    Raises:
        MoonmillError: it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as room:
            unfinished = Path(room, folder.name)
            unfinished.mkdir()
            shutil.copyfile(checkpoint / WEIGHTS, unfinished / WEIGHTS)
            (unfinished / _DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(description)))
            flush(unfinished)
            unfinished.rename(folder)
    except OSError as e:
        raise MoonmillError(f"cannot write {folder}: {e.strerror or e}") from e


def _kind(lora: CriticLoraConfig | None) -> str:
    return f"an adapter of r {lora.r} and alpha {lora.alpha:g}" if lora else "all weights"
