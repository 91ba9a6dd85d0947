"""LoRA adapters on a frozen base (arXiv 2106.09685): where they are put, how they begin, how they are written.

What always holds: it begins as nothing (B = 0), so that version 0 is the base; it has no dropout, so that what is
trained is what was sampled; and no weight of the base is written or copied for it. It is saved as PEFT saves, under the
names PEFT uses, for anyone to load.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from moonmill.agents.engine.folder import ADAPTER_FILE, ADAPTER_WEIGHTS
from moonmill.algorithm_config import CriticLoraConfig
from moonmill.config import LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.position_wise import backbone_of, position_wise, text_of
from moonmill.trainer.weights import copy_beside, load_tensors, save_tensors, write_whole

_IN_A_LAYER = re.compile(r"\.\d+\.")
"""Modules of the repeated layers; the head and what leads into and out of the embeddings stand outside."""
_ROUTER = re.compile(r"router|(^|[._])gate$", re.IGNORECASE)
"""What chooses experts; a `gate_proj` is a projection."""
_KEY = "model.lora.target_modules"
_MATRICES = 3
"""Dimensions of a parameter that holds the matrices of several experts."""
_WITHOUT_OUT_PROJ = {"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"}
"""Kinds of models in which PEFT puts no adapter on `out_proj`, since kernels read its weight past the module."""


class Adapter:
    """An adapter, put into a model: its projections become the base's and the adapter's together.

    `peft` is PEFT's model around it.

    Args:
        model: the base, which is frozen.
        lora: rank, scale and place.
        source: the folder or hub id the base came from.
        seed: decides how the adapter begins.

    Raises:
        ConfigError: the model has not the modules it is to be put on.
    """

    def __init__(self, model: PreTrainedModel, lora: LoraConfig, source: str, seed: int) -> None:
        self._source = source
        places = target_modules(model, lora.target_modules)
        config = _config(model, lora, target_modules=places, task_type="CAUSAL_LM")
        with _seeded(model, seed):
            self.peft: peft.PeftModel = peft.get_peft_model(model, config)
        self.peft.eval()
        self.parameters: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
        base = Path(source)
        described = config.to_dict() | {
            "base_model_name_or_path": str(base.absolute()) if base.is_dir() else source,
            "target_modules": sorted(places),
            "inference_mode": True,
        }
        # What PEFT adds for some models is a set, which JSON does not have.
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in described.items()}
        self._description = json.dumps(plain, indent=2, sort_keys=True)

    def export(self, folder: Path, dtype: torch.dtype) -> None:
        folder.mkdir(exist_ok=True)
        write_whole(folder / ADAPTER_WEIGHTS, lambda file: save_tensors(self._tensors(), file, dtype))
        # The last, since it is what makes the folder an adapter's.
        write_whole(folder / ADAPTER_FILE, lambda file: file.write_text(self._description))

    def save(self, folder: Path) -> None:
        folder.mkdir()
        save_tensors(self._tensors(), folder / ADAPTER_WEIGHTS)
        (folder / ADAPTER_FILE).write_text(self._description)
        copy_beside(self._source, folder)

    def load(self, folder: Path) -> None:
        load_tensors(self._tensors(), folder / ADAPTER_WEIGHTS)

    def beside(self, places: Mapping[str, nn.Module], lora: CriticLoraConfig, seed: int) -> "SideAdapter":
        """Put the critic's adapter on the same base. Arguments as of `SideAdapter`."""
        return SideAdapter(self.peft, places, lora, seed)

    def _tensors(self) -> dict[str, Tensor]:
        """The adapter's own tensors, by PEFT's names."""
        tensors: dict[str, Tensor] = peft.get_peft_model_state_dict(self.peft, save_embedding_layers=False)
        return tensors


class SideAdapter:
    """The critic's adapter: beside the policy's on one base, or alone on a base that is there for nothing else.

    It begins as nothing too. Beside the policy's it does nothing outside of `active`.

    Args:
        base: a model that has an adapter already, which is in use again after `active`; or one that has none.
        places: modules of it that are adapted, by their paths, from before there was any adapter in it.
        lora: rank and scale.
        seed: decides how it begins.
    """

    _NAME = "critic"

    def __init__(
        self,
        base: peft.PeftModel | PreTrainedModel,
        places: Mapping[str, nn.Module],
        lora: CriticLoraConfig,
        seed: int,
    ) -> None:
        model: PreTrainedModel = base.get_base_model() if isinstance(base, peft.PeftModel) else base
        linear = [path for path, module in places.items() if isinstance(module, nn.Linear | Conv1D)]
        fused = [
            f"{path}.{name}"
            for path, module in places.items()
            if path not in linear
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.ndim == _MATRICES
        ]
        config = _config(model, lora, target_modules=linear, target_parameters=fused or None)
        with _seeded(model, seed):
            if isinstance(base, peft.PeftModel):
                self._peft = base
                base.add_adapter(self._NAME, config)
            else:
                self._peft = peft.get_peft_model(model, config, adapter_name=self._NAME)
        self._peft.eval()
        self._beside: str | None = self._peft.active_adapter if self._peft.active_adapter != self._NAME else None
        self._without = [m for m in model.modules() if isinstance(m, LoraLayer) and self._NAME not in m.r]
        self.backbone: nn.Module = backbone_of(model)
        self.parameters: dict[str, nn.Parameter] = {
            name.replace(f".{self._NAME}", ""): parameter
            for name, parameter in self.backbone.named_parameters()
            if f".{self._NAME}." in name
        }
        """By their paths in the backbone, whatever that stands in."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Have this adapter in the place of the model's own: for forward passes and for what is propagated back."""
        if self._beside is None:
            yield
            return
        self._peft.set_adapter(self._NAME)
        # PEFT passes over a layer that has not got the adapter; Unsloth's kernels do where it is switched off.
        for layer in self._without:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self._without:
                layer.enable_adapters(True)
            self._peft.set_adapter(self._beside)


def target_modules(model: PreTrainedModel, wanted: str | tuple[str, ...]) -> list[str]:
    """Which modules of a model an adapter is put on, as PEFT is to be told.

    Args:
        model: the base.
        wanted: `auto`: all linear projections of attention and MLP. Otherwise names of such projections.

    Raises:
        ConfigError: there are none, or none of that name, or `auto` would have to leave experts out.
    """
    name = type(model).__name__
    linear = _projections(model)
    known = list(dict.fromkeys(path.rpartition(".")[2] for path in linear))
    if isinstance(wanted, tuple):
        if unknown := [w for w in wanted if not any(_matches(path, w) for path in linear)]:
            raise ConfigError(f"{_KEY}: {name} has no projection {', '.join(unknown)}; it has {', '.join(known)}")
    elif fused := _fused(model):
        advice = f"name what it is to be put on, such as [{', '.join(known)}], or " if known else ""
        raise ConfigError(
            f"{_KEY}: {name} keeps its experts in fused parameters ({', '.join(fused)}), which an adapter cannot be "
            f"put on: {advice}set model.lora to null to train all weights"
        )
    elif not linear:
        raise ConfigError(f"{_KEY}: {name} has no linear projections in its layers: set model.lora to null")
    names = known if isinstance(wanted, str) else list(dict.fromkeys(wanted))
    named = {path for path, _ in model.named_modules() if any(_matches(path, n) for n in names)}
    # A name may also stand for something that is no projection of a layer: then only whole paths tell them apart.
    return names if named <= set(linear) else sorted(named & set(linear))


def _projections(model: PreTrainedModel) -> list[str]:
    """Paths of the linear projections of attention and MLP in all layers that read text."""
    reading = {*text_of(model).modules()}
    left_out = "out_proj" if model.config.model_type in _WITHOUT_OUT_PROJ else None
    return [
        path
        for path, module in model.named_modules()
        if module in reading
        and path.rpartition(".")[2] != left_out
        and isinstance(module, nn.Linear | Conv1D)
        and _IN_A_LAYER.search(path)
        and not _ROUTER.search(path)
    ]


def _fused(model: PreTrainedModel) -> list[str]:
    """Names, within a layer that reads text, of parameters that hold the matrices of many experts."""
    paths = [
        f"{path}.{name}"
        for path, module in position_wise(model).items()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim >= _MATRICES
    ]
    return list(dict.fromkeys(_IN_A_LAYER.split(path)[-1] for path in paths))


def _matches(path: str, name: str) -> bool:
    """Whether PEFT takes a module for one of that name."""
    return path == name or path.endswith(f".{name}")


def _config(model: PreTrainedModel, lora: LoraConfig | CriticLoraConfig, **places: Any) -> peft.LoraConfig:
    return peft.LoraConfig(
        r=lora.r,
        # A whole number as one: it is what most write there, and all that some can read.
        lora_alpha=int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        **places,
    )


@contextmanager
def _seeded(model: PreTrainedModel, seed: int) -> Iterator[None]:
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
