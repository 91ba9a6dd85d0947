"""A first look at a model folder, before anything heavy is imported for it."""

from pathlib import Path


def problem_of(model: str) -> str | None:
    """Why `model` can be neither a model's folder nor a hub id; None where it can."""
    folder = Path(model)
    if folder.exists():
        return None if (folder / "config.json").is_file() else f"{model} is not a model folder: it has no config.json"
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        return f"the model folder {model} does not exist"
    return None
