"""Which model folder an argument stands for."""

from pathlib import Path

from moonmill.errors import RunDirectoryError


def policy_of(folder: Path) -> Path:
    """The model in `folder`: itself, or the newest checkpoint's policy where it is a run.

    Raises:
        RunDirectoryError: a run without a checkpoint.
    """
    if not is_run(folder):
        return folder
    from moonmill.trainer.checkpoint import latest

    checkpoint = latest(folder)
    if checkpoint is None:
        raise RunDirectoryError(f"{folder} has no checkpoint yet; give the folder of a model")
    return checkpoint / "policy"


def is_run(folder: Path) -> bool:
    """Whether `folder` is a run directory. A model has a `config.json` instead."""
    return (folder / "config.yaml").is_file() and not (folder / "config.json").is_file()
