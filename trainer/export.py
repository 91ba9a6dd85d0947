"""A policy as a folder of its own, for others to load: copied as it is, or an adapter merged into its base.

What always holds: the folder is whole or not there, and one that has something in it is left alone.
"""

import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from moonmill.agents.engine.folder import ADAPTER_WEIGHTS, parts_of, problem_of, text_of
from moonmill.errors import ConfigError, MoonmillError
from moonmill.trainer.checkpoint import flush, version_of


class Exported(Struct, frozen=True):
    """What was written."""

    folder: str
    kind: Literal["model", "adapter"]
    version: int | None
    """None where it came from no checkpoint."""
    source: str
    base: str | None
    """What an adapter stands on, or was merged into."""


def export(source: Path, out: Path, *, merge: bool) -> Exported:
    """Write the policy in `source` to the folder `out`.

    Args:
        source: the folder of a model or an adapter.
        out: is made, or empty.
        merge: make a whole model of an adapter, in the dtype its base is kept in.

    Raises:
        ConfigError: there is no policy in `source`, or `out` cannot be taken.
        MoonmillError: it could not be loaded or written.
    """
    base, adapter = parts_of(str(source))
    whole = merge or adapter is None
    if whole and (problem := problem_of(str(source))):
        raise ConfigError(problem)
    if adapter:
        _require_readable(adapter / ADAPTER_WEIGHTS)
    out = out.resolve()
    _require_free(out, source.resolve())
    try:
        if adapter and merge:
            _make(out, lambda folder: _merge(base, adapter, folder))
        else:
            _make(out, lambda folder: shutil.copytree(source, folder))
    except (OSError, shutil.Error) as e:
        raise MoonmillError(f"cannot write {out}: {getattr(e, 'strerror', None) or e}") from e
    kind: Literal["model", "adapter"] = "model" if whole else "adapter"
    return Exported(str(out), kind, version_of(source), str(source), base if adapter else None)


def _require_readable(weights: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, "numpy"):
            pass
    except (OSError, SafetensorError) as e:
        raise ConfigError(f"{weights} cannot be read, so there is no adapter to export: {e}") from e


def _require_free(out: Path, source: Path) -> None:
    if out == source or source in out.parents:
        raise ConfigError(f"--out: {out} lies in what is to be exported, {source}: choose another folder")
    try:
        if not out.is_dir() and out.exists():
            raise ConfigError(f"--out: {out} is a file: choose another folder")
        if out.is_dir() and any(out.iterdir()):
            raise ConfigError(f"--out: {out} is not empty: choose another folder, or remove it")
    except OSError as e:
        raise ConfigError(f"--out: {out} cannot be a folder: {e.strerror}") from e


def _make(out: Path, fill: Callable[[Path], object]) -> None:
    """Have a folder made under another name, and give it its own in one step."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as room:
        unfinished = Path(room, out.name)
        fill(unfinished)
        flush(unfinished)
        unfinished.rename(out)


def _merge(base: str, adapter: Path, folder: Path) -> None:
    from peft import PeftModel
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from moonmill.trainer.weights import copy_beside, share

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # what transformers tells peft
            merged = PeftModel.from_pretrained(model, adapter).merge_and_unload(safe_merge=True)
    except Exception as e:  # transformers, peft and safetensors raise whatever they like about a folder
        reason = next(iter(str(e).strip().splitlines()), "")
        raise MoonmillError(f"cannot merge {adapter} into {base}: {type(e).__name__}: {reason}") from e
    folder.mkdir()
    try:
        merged.save_pretrained(folder)
    except SafetensorError as e:  # a full disk
        raise OSError(str(e)) from e
    for file in folder.glob("*.safetensors"):
        share(file)
    copy_beside(base, folder)
    if text_of(str(adapter)) != base:
        copy_beside(str(adapter), folder)
