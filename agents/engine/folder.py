"""A first look at a model, before anything heavy is imported for it.

A folder holds a whole model (`config.json`), or a PEFT adapter (`adapter_config.json`), which names the base it stands
on.
"""

from pathlib import Path
from typing import Any

import httpx
import msgspec

from moonmill.errors import ConfigError

ADAPTER_FILE = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
_HUB_SECONDS = 10.0


class _AdapterFile(msgspec.Struct):
    """What is read here of `adapter_config.json`."""

    base_model_name_or_path: str | None = None


def parts_of(model: str) -> tuple[str, Path | None]:
    """The base of a model, a folder or a hub id, and the adapter's folder: None where `model` is no adapter.

    Raises:
        ConfigError: the adapter does not say what its base is.
    """
    folder = Path(model)
    file = folder / ADAPTER_FILE
    if not file.is_file():
        return model, None
    try:
        base = msgspec.json.decode(file.read_bytes(), type=_AdapterFile).base_model_name_or_path
    except (OSError, msgspec.MsgspecError) as e:
        raise ConfigError(f"{file} cannot be read: {e}") from e
    if not base:
        raise ConfigError(f"{file} does not name the adapter's base: set base_model_name_or_path in it")
    return base, folder


def problem_of(model: str) -> str | None:
    """Why `model` can be neither a model's or an adapter's folder nor a hub id; None where it can."""
    try:
        base, adapter = parts_of(model)
    except ConfigError as e:
        return str(e)
    if adapter is None:
        return _problem_of_whole(model)
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        return f"{model} is not a whole adapter: it has no {ADAPTER_WEIGHTS}"
    if (Path(base) / ADAPTER_FILE).is_file():
        return f"the adapter {model} stands on {base}, which is an adapter itself: only a whole model can be a base"
    if problem := _problem_of_whole(base):
        return (
            f"the adapter {model} cannot be used without its base: {problem}. Bring it back, or set "
            f"base_model_name_or_path in {adapter / ADAPTER_FILE} to where it is now"
        )
    return None


def text_of(model: str) -> str:
    """Where a model's tokenizer and chat format are: for an adapter that has none beside it, with its base."""
    base, adapter = parts_of(model)
    return base if adapter and not any((adapter / name).exists() for name in _TOKENIZER_FILES) else model


def require_whole(model: str) -> None:
    """Refuse an adapter, where only a whole model can be begun with.

    Raises:
        ConfigError: it is one.
    """
    if parts_of(model)[1]:
        raise ConfigError(
            f"model.path: {model} is an adapter, and training begins with a whole model: make one with `moonmill "
            f"export {model} --merge --out FOLDER`, and give that folder"
        )


def positions_of(folder: Path) -> int | None:
    """The longest context of the model in a folder, or of an adapter's base, where its configuration tells.

    Raises:
        ConfigError: the configuration is there and cannot be read.
    """
    return _number_in(folder, "max_position_embeddings", "n_positions")


def vocabulary_of(folder: Path) -> int | None:
    """How many tokens the model in a folder has, or an adapter's base, where its configuration tells.

    Raises:
        ConfigError: the configuration is there and cannot be read.
    """
    return _number_in(folder, "vocab_size")


def _number_in(folder: Path, *names: str) -> int | None:
    file = Path(parts_of(str(folder))[0], "config.json")
    try:
        told = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        raise ConfigError(f"model.path: {file} cannot be read: {e}") from e
    text = told.get("text_config", told)
    found = next((text[name] for name in names if name in text), None) if isinstance(text, dict) else None
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


def _problem_of_whole(model: str) -> str | None:
    folder = Path(model)
    if folder.exists():
        return None if (folder / "config.json").is_file() else f"{model} is not a model folder: it has no config.json"
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        return f"the model folder {model} does not exist"
    return None
