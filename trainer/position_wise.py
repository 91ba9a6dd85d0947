"""Which projections of a model treat each token by itself: those of its MLPs and experts, and which take part in
mixing tokens: those of attention of every kind, linear attention, state spaces, convolutions, recurrences.

Told by what modules are, not by how a family names them. In a repeated layer, a *mixer* is the outermost module that

- transformers records as attention (`_can_record_outputs`), or
- is called with what only mixing tokens needs: masks, positions, caches, states of a recurrence, or
- holds a convolution or a recurrent network.

All that stands in a layer beside its mixers is position-wise. What of that is a projection is a matrix (`nn.Linear`,
`Conv1D`) or a module that holds the matrices of many experts as parameters of its own. Routers, norms and embeddings
are none: transformers records routers (`_can_record_outputs`), or they are named so, or, as gates of a shared expert,
give one number a token.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

_OF_SEQUENCES = re.compile(
    r"mask|cache|past|(^|_)pos|rotary|alibi|^mems$|^kv$|key_value_states|(?<!hidden)_state$|^state$"
)
"""Arguments of a forward pass that only a module that mixes tokens is called with."""
_ROUTER = re.compile(r"router|^gate$", re.IGNORECASE)
_NORM = re.compile(r"norm(gated)?$", re.IGNORECASE)
_EXPERTS = re.compile(r"expert", re.IGNORECASE)
_MATRIX, _MATRICES = 2, 3


def position_wise(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The position-wise projections of all layers, by their paths in `model`: empty where it has none.

    Each answers for its own parameters alone (`parameters(recurse=False)`). Parts that read no text are left out.
    """
    return _found(model, mixers_too=False)


def backbone_of(model: PreTrainedModel) -> PreTrainedModel:
    """A model without its output head. Of a backbone, itself."""
    base: PreTrainedModel = model.base_model
    if base is not model or model.get_output_embeddings() is None:
        return base
    # Some families call their backbone otherwise than they say they do.
    return next((child for child in model.children() if isinstance(child, PreTrainedModel)), model)


def text_of(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a backbone that reads text, without the towers for pictures and sound that some models have."""
    backbone = backbone_of(model)
    decoder: PreTrainedModel | None = backbone.get_decoder()
    return backbone if decoder is None else decoder


def projections(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The projections of all layers, those that take part in mixing tokens among them. As `position_wise` else."""
    return _found(model, mixers_too=True)


def mixers(model: PreTrainedModel) -> dict[str, nn.Module]:
    """What mixes tokens in the layers: the outermost modules that do, by their paths in `model`."""
    text = text_of(model)
    mixing = _mixing(model, text)
    paths = {module: path for path, module in model.named_modules()}
    return {paths[mixer]: mixer for layer in _layers(text, mixing) for mixer in _outermost(layer, mixing)}


def _outermost(layer: nn.Module, mixing: set[nn.Module]) -> Iterator[nn.Module]:
    for module in layer.children():
        if module in mixing and not _is_layer(module, mixing):
            yield module
        else:
            yield from _outermost(module, mixing)


def _mixing(model: PreTrainedModel, text: PreTrainedModel) -> set[nn.Module]:
    attention = _recorded(model, "attentions")
    return {
        module
        for module in text.modules()
        if not isinstance(module, nn.ModuleList) and (isinstance(module, attention) or _mixes(module))
    }


def _found(model: PreTrainedModel, *, mixers_too: bool) -> dict[str, nn.Module]:
    text = text_of(model)
    mixers, routers = _mixing(model, text), _recorded(model, "router_logits")
    found: dict[str, nn.Module] = {}
    paths = {module: path for path, module in model.named_modules()}
    for layer in _layers(text, mixers):
        found |= _projections(layer, paths[layer], set() if mixers_too else mixers, routers)
    return found


def _layers(text: nn.Module, mixers: set[nn.Module]) -> Iterator[nn.Module]:
    """The repeated layers: elements of a list some of which have a mixer inside; some may have an MLP alone."""
    if isinstance(text, nn.ModuleList):
        kinds = {type(element) for element in text if any(m in mixers for m in element.modules() if m is not element)}
        if kinds:
            yield from (element for element in text if type(element) in kinds)
            return
    for child in text.children():
        yield from _layers(child, mixers)


def _projections(
    layer: nn.Module, path: str, mixers: set[nn.Module], routers: tuple[type, ...]
) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    for name, module in layer.named_children():
        if module in mixers and not _is_layer(module, mixers):
            continue
        if isinstance(module, routers) or _ROUTER.search(name) or "Router" in type(module).__name__:
            continue
        if _NORM.search(type(module).__name__):
            continue
        here = f"{path}.{name}"
        if _is_projection(module):
            found[here] = module
        found |= _projections(module, here, mixers, routers)
    return found


def _is_layer(module: nn.Module, mixers: set[nn.Module]) -> bool:
    """A whole layer inside a layer, as hybrids have them, rather than what wraps a layer's attention."""
    named = isinstance(module, GradientCheckpointingLayer) or type(module).__name__.endswith("DecoderLayer")
    return named and any(m in mixers for m in module.modules() if m is not module)


def _is_projection(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear):
        return module.out_features > 1
    if isinstance(module, Conv1D):
        return True
    sizes = {parameter.ndim for parameter in module.parameters(recurse=False)}
    fused = _MATRIX if _EXPERTS.search(type(module).__name__) else _MATRICES
    return not isinstance(module, nn.Embedding | nn.modules.conv._ConvNd) and max(sizes, default=0) >= fused


def _mixes(module: nn.Module) -> bool:
    if any(isinstance(child, nn.Conv1d | nn.RNNBase) for child in module.children()):
        return True
    return any(_OF_SEQUENCES.search(name) for name in inspect.signature(module.forward).parameters)


def _recorded(model: PreTrainedModel, output: str) -> tuple[type, ...]:
    """The classes of the modules that transformers takes an output from."""
    recorded: Any = (getattr(backbone_of(model), "_can_record_outputs", None) or {}).get(output, ())
    several = recorded if isinstance(recorded, list | tuple) else [recorded]
    classes = (getattr(one, "target_class", one) for one in several)
    return tuple(one for one in classes if isinstance(one, type))
