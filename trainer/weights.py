"""What of a policy is trained, and how it is written: all of its weights here, an adapter in `lora`.

What always holds: an export is whole or not there at all, and a checkpoint gives back the same bits.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf")
_DESCRIPTIONS = ("config.json", "generation_config.json", "adapter_config.json")
"""Written from the model or the adapter itself."""


class TrainedWeights(Protocol):
    """The part of a policy that is trained."""

    parameters: list[nn.Parameter]
    """What the optimizer updates."""

    def export(self, folder: Path, dtype: torch.dtype) -> None:
        """Write a version into `folder`, as the engine loads it, its floating-point tensors as `dtype`."""
        ...

    def save(self, folder: Path) -> None:
        """Make `folder`, which others can load, with the exact bits."""
        ...

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote."""
        ...


class FullWeights:
    """All weights of a policy.

    Args:
        model: the policy.
        source: the folder or hub id it came from.
    """

    _FILE = "model.safetensors"

    def __init__(self, model: PreTrainedModel, source: str) -> None:
        self._model = model
        self._source = source
        self.parameters = list(model.parameters())

    def export(self, folder: Path, dtype: torch.dtype) -> None:
        folder.mkdir(exist_ok=True)
        write_whole(folder / self._FILE, lambda file: save_tensors(own_tensors(self._model), file, dtype))

    def save(self, folder: Path) -> None:
        folder.mkdir()
        self._model.config.save_pretrained(folder)
        if self._model.can_generate():
            self._model.generation_config.save_pretrained(folder)
        save_tensors(own_tensors(self._model), folder / self._FILE)
        copy_beside(self._source, folder)

    def load(self, folder: Path) -> None:
        load_tensors(own_tensors(self._model), folder / self._FILE)


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """A module's state dict without second names of tied tensors."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def save_tensors(tensors: Mapping[str, Tensor], file: Path, dtype: torch.dtype | None = None) -> None:
    """Write tensors as safetensors.

    Args:
        tensors: those of floating point are written as `dtype`; None keeps theirs.
        file: its folder exists.
        dtype: see above.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    written = {
        name: tensor.to("cpu", dtype if dtype and tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in tensors.items()
    }
    try:
        save_file(written, file, metadata={"format": "pt"})
        share(file)
    except SafetensorError as e:
        raise OSError(str(e)) from e


def share(file: Path) -> None:
    """Give a file the mode that other new files have: safetensors makes them for nobody else to read."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def load_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Read back what `save_tensors` wrote, into the tensors there are.

    Raises:
        ValueError: the file holds others.
    """
    from safetensors.torch import load_file

    found = load_file(file)
    if set(found) != set(tensors) or any(found[n].shape != t.shape for n, t in tensors.items()):
        raise ValueError(f"{file} holds the weights of another model")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(found[name])


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file under another name, and give it its own in one step."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    write(unfinished)
    unfinished.replace(file)


def copy_beside(source: str, folder: Path) -> None:
    """Copy into `folder` what a model has beside its weights and their description: tokenizer, chat format, licence."""
    origin = Path(source)
    if not origin.is_dir():
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        return
    for file in sorted(origin.iterdir()):
        if file.is_file() and file.name not in _DESCRIPTIONS and not any(file.match(p) for p in _WEIGHT_FILES):
            shutil.copyfile(file, folder / file.name)
