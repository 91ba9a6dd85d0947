"""The shape of a model: how many numbers it holds, caches and computes with, layer by layer, without any weights.

The model that the learner would load is made on torch's `meta` device, where tensors have sizes and no memory, and is
looked at with the learner's own eyes: what an adapter is put on is asked of `moonmill.trainer.lora`, what a critic
trains of `moonmill.trainer.critic`, what bitsandbytes leaves alone of transformers. So there is no formula of a family
here that could be wrong about it, and every family that transformers knows has a shape.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import asdict
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from moonmill.algorithm_config import CriticConfig
from moonmill.config import LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.critic import places_of
from moonmill.trainer.lora import target_modules
from moonmill.trainer.planning.caches import Cached, cached_by
from moonmill.trainer.position_wise import backbone_of, text_of
from moonmill.trainer.recompute import outermost

_NORM = re.compile(r"norm", re.IGNORECASE)
_EXPERTS = re.compile(r"expert", re.IGNORECASE)


class Projection(Struct, frozen=True):
    """A matrix that tokens are multiplied with, or as many of them as there are experts."""

    inputs: int
    outputs: int
    parent: str
    """The module it stands in: what stands in one module reads the same input, where that is as wide."""
    experts: int = 1

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.experts

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter of that rank on it: A is `[rank, inputs]`, B is `[outputs, rank]`."""
        return rank * (self.inputs + self.outputs) * self.experts


class Layer(Cached, frozen=True):
    """One of the repeated layers: its attention, and all else that it computes with."""

    projections: tuple[Projection, ...]
    policy: tuple[Projection, ...]
    """Those the policy's adapter is put on; empty where all weights are trained."""
    critic: tuple[Projection, ...]
    """Those the critic trains, or puts its adapter on."""
    norms: int
    """Width of what its norms are given, all together."""
    widened: int
    """What its MLP computes between its projections: 3 times its width with a gate, once without."""
    experts_used: int
    """Experts a token goes through; 0 where there are none."""


class Shape(Struct, frozen=True):
    """A model as a plan sees it."""

    architecture: str
    parameters: int
    """All of them, each once, as transformers counts them."""
    quantizable: int
    """Weights that bitsandbytes takes: those of linear projections, but not of the head."""
    quantizable_rows: int
    """Rows of their matrices."""
    largest: int
    """Weights of the largest of those matrices."""
    adapted: int
    """Inputs and outputs, all together, of the projections the policy's adapter is put on: times its rank, its
    weights."""
    backbone: int
    """Parameters without those of a head of its own: what a critic with weights of its own copies."""
    lookups: int
    """Parameters of embeddings beside the first one: those of Gemma's layers. Rows are looked up, not multiplied."""
    embeddings: int
    """Parameters of the embedding of tokens, whether or not it is the head as well."""
    towers: int
    """Parameters of parts that read no text, which are loaded and not trained."""
    head: int
    """Weights of the head, be it tied to the embedding or not."""
    active: int
    """Weights a token is multiplied with in the layers: of the experts those it goes through."""
    expert_weights: int
    """Weights of all experts together."""
    hidden: int
    vocabulary: int
    positions: int | None
    """The longest context it was made for."""
    layers: tuple[Layer, ...]

    @property
    def linear_attention(self) -> int:
        """Layers that carry a state from token to token in place of keys and values."""
        return sum(layer.state > 0 for layer in self.layers)

    def keys_of(self, length: int) -> int:
        """Numbers that the keys and values of one sequence of `length` tokens are."""
        return sum(layer.keys * min(length, layer.window or length) for layer in self.layers)

    @property
    def states(self) -> int:
        """Bytes of the states of one sequence."""
        return sum(layer.state for layer in self.layers)


def shape_of(config: Any, lora: LoraConfig | None, critic: CriticConfig | None) -> Shape:
    """The shape of the model that transformers makes of a configuration.

    Args:
        config: transformers' own, of the model.
        lora: the policy's adapter; None trains all weights.
        critic: the run's; None where there is none.

    Raises:
        ConfigError: transformers cannot make it a causal language model, it cannot be trained as configured, or it has
            layers whose caches are not known here.
    """
    model = _on_meta(config)
    text = config.get_text_config()
    names = target_modules(model, lora.target_modules) if lora else []
    places = {id(module) for module in places_of(model, critic).values()} if critic else set()
    decoder: nn.Module = text_of(model)
    paths = {id(module): path for path, module in model.named_modules()}
    layers = tuple(
        _layer(module, paths[id(module)], cached_by(text, i), names, places, text)
        for i, module in enumerate(outermost(decoder))
    )
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tables = [m for m in decoder.modules() if isinstance(m, nn.Embedding) and m is not embedding]
    vocabulary, width = head.weight.shape if head is not None else embedding.weight.shape
    ends = [module for module in (embedding, head) if module is not None]
    read = {id(p) for module in (decoder, *ends) for p in module.parameters()}
    quantized = list(_quantized(model))
    experts = sum(p.weights for layer in layers for p in layer.projections if p.experts > 1)
    return Shape(
        architecture=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        quantizable=sum(m.weight.numel() for m in quantized),
        quantizable_rows=sum(m.weight.shape[0] for m in quantized),
        largest=max((m.weight.numel() for m in quantized), default=0),
        adapted=sum(p.adapter(1) for layer in layers for p in layer.policy),
        backbone=sum(p.numel() for p in backbone_of(model).parameters()),
        lookups=sum(p.numel() for table in tables for p in table.parameters()),
        embeddings=embedding.weight.numel(),
        towers=sum(p.numel() for p in model.parameters() if id(p) not in read),
        head=vocabulary * width,
        active=sum(_active(layer) for layer in layers),
        expert_weights=experts,
        hidden=text.hidden_size,
        vocabulary=vocabulary,
        positions=getattr(text, "max_position_embeddings", None),
        layers=layers,
    )


def _on_meta(config: Any) -> PreTrainedModel:
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except Exception as e:  # code of any model, given any configuration
        reason = next(iter(str(e).strip().splitlines()), "")
        raise ConfigError(
            f"model.path: transformers makes no causal language model of its config.json ({config.model_type}): "
            f"{type(e).__name__}: {reason}"
        ) from e
    return model


def _matches(path: str, names: list[str]) -> bool:
    """Whether PEFT puts an adapter on the module of that path, told such names."""
    return any(path == name or path.endswith(f".{name}") for name in names)


def _layer(module: nn.Module, path: str, cached: Cached, names: list[str], places: set[int], text: Any) -> Layer:
    found: list[tuple[Projection, bool, bool]] = []
    hidden: int = text.hidden_size
    for name, part in module.named_modules():
        here = f"{path}.{name}"
        adapted = _matches(here, names)
        found += [(p, adapted, id(part) in places) for p in _projections(part, here.rpartition(".")[0])]
    projections = tuple(p for p, _, _ in found)
    used = _experts_used(text) if any(p.experts > 1 for p in projections) else 0
    mixers = {p.parent for p in projections if _takes_part(p.parent)}
    wide = [p for p in projections if p.parent not in mixers]
    made = sum(p.outputs * (used if p.experts > 1 else 1) for p in wide if p.outputs != hidden)
    taken = sum(p.inputs * (used if p.experts > 1 else 1) for p in wide if p.inputs != hidden)
    return Layer(
        **asdict(cached),
        projections=projections,
        policy=tuple(p for p, adapted, _ in found if adapted),
        critic=tuple(p for p, _, trained in found if trained),
        norms=_norms(module, hidden),
        # Between its projections an MLP keeps what the first gave, and with a gate what came of its activation.
        widened=made + max(0, made - taken),
        experts_used=used,
    )


def _experts_used(text: Any) -> int:
    """Of the experts of a layer, those that a token goes through."""
    used: int = next((n for name in ("num_experts_per_tok", "top_k_experts") if (n := getattr(text, name, None))), 0)
    return used


def _takes_part(parent: str) -> bool:
    """Whether a module mixes tokens, by its name: of use for sizes of activations alone."""
    return re.search(r"attn|attention|mixer|mamba", parent.rpartition(".")[2], re.IGNORECASE) is not None


def _projections(module: nn.Module, parent: str) -> Iterator[Projection]:
    if isinstance(module, nn.Linear):
        yield Projection(module.in_features, module.out_features, parent)
    elif isinstance(module, Conv1D):
        yield Projection(module.weight.shape[0], module.weight.shape[1], parent)
    elif _EXPERTS.search(type(module).__name__):
        for parameter in module.parameters(recurse=False):
            if parameter.ndim == 3:
                count, outputs, inputs = parameter.shape
                yield Projection(inputs, outputs, f"{parent}.experts", count)


def _norms(layer: nn.Module, hidden: int) -> int:
    width = 0
    for path, module in layer.named_modules():
        if not _NORM.search(type(module).__name__):
            continue
        # A norm of queries, keys or values is given all of their heads.
        parent, _, name = path.rpartition(".")
        projection = getattr(layer.get_submodule(parent), f"{name[0]}_proj", None) if name[1:] == "_norm" else None
        width += projection.out_features if isinstance(projection, nn.Linear) else hidden
    return width


def _active(layer: Layer) -> int:
    dense = sum(p.weights for p in layer.projections if p.experts == 1)
    return dense + sum(p.inputs * p.outputs * layer.experts_used for p in layer.projections if p.experts > 1)


def _quantized(model: PreTrainedModel) -> Iterable[Any]:
    """The modules that transformers replaces by those of bitsandbytes."""
    left = get_keys_to_not_convert(model)
    for path, module in model.named_modules():
        if (type(module) is nn.Linear or isinstance(module, Conv1D)) and should_convert_module(path, left):
            yield module
