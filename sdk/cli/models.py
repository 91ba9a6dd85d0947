"""Which model folder an argument stands for."""

from pathlib import Path
from typing import TYPE_CHECKING

from moonmill.errors import ConfigError, RunDirectoryError

if TYPE_CHECKING:
    from moonmill.config import ModelConfig


def policy_of(folder: Path) -> Path:
    """The model in `folder`: itself, or the newest checkpoint's policy where it is a run.

    Raises:
        ConfigError: no folder is there.
        RunDirectoryError: a run without a checkpoint, or with a damaged one.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: give the folder of a model or of a run")
    if not is_run(folder):
        return folder
    from moonmill.trainer.checkpoint import damage_of, latest

    checkpoint = latest(folder)
    if checkpoint is None:
        raise RunDirectoryError(f"{folder} has no checkpoint yet; give the folder of a model")
    if damage := damage_of(checkpoint):
        raise RunDirectoryError(
            f"{checkpoint} is damaged: {damage}. `moonmill train … --resume` makes it again; an older one can be given "
            f"as a model, by its folder {checkpoint.parent}/step-…/policy"
        )
    return checkpoint / "policy"


def settings_of(folder: Path) -> "ModelConfig | None":
    """What a run's config says of its model; None where `folder` is a model itself."""
    if not is_run(folder):
        return None
    from moonmill.config_io import load_config

    return load_config(folder / "config.yaml").model


def is_run(folder: Path) -> bool:
    """Whether `folder` is a run directory. A model has a `config.json` instead, an adapter an `adapter_config.json`."""
    model = ("config.json", "adapter_config.json")
    return (folder / "config.yaml").is_file() and not any((folder / name).is_file() for name in model)
