"""A first look at a model, before anything heavy is imported for it."""

from pathlib import Path
from typing import Any

import httpx
import msgspec

from moonmill.errors import ConfigError

_HUB_SECONDS = 10.0


def problem_of(model: str) -> str | None:
    """Why `model` can be neither a model's folder nor a hub id; None where it can."""
    folder = Path(model)
    if folder.exists():
        return None if (folder / "config.json").is_file() else f"{model} is not a model folder: it has no config.json"
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        return f"the model folder {model} does not exist"
    return None


def positions_of(folder: Path) -> int | None:
    """The longest context of the model in a folder, where its configuration tells.

    Raises:
        ConfigError: the configuration is there and cannot be read.
    """
    file = folder / "config.json"
    try:
        told = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        raise ConfigError(f"model.path: {file} cannot be read: {e}") from e
    text = told.get("text_config", told)
    found = text.get("max_position_embeddings", text.get("n_positions")) if isinstance(text, dict) else None
    return found if isinstance(found, int) else None


def require_hub(model: str) -> str:
    """Where the model of a hub id comes from: the hub, or what was fetched from it before.

    Without this, every file that is not there would be asked for again and again, for minutes.

    Raises:
        ConfigError: it was not fetched yet, and the hub cannot be reached.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return "the cache of the hub"
    advice = "give the path of a model's folder"
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"model.path: {model} was not fetched from the hub yet, and HF_HUB_OFFLINE is set; {advice}")
    try:
        httpx.head(constants.ENDPOINT, timeout=_HUB_SECONDS)
    except httpx.HTTPError as e:
        raise ConfigError(
            f"model.path: there is no folder {model}, and the hub {constants.ENDPOINT} cannot be reached for a model "
            f"of this name ({type(e).__name__}: {e}): {advice}, or mend the connection"
        ) from e
    return "the hub"
