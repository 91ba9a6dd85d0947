"""Gradient checkpointing: layers keep what went into them, and compute the rest again when gradients are taken.

Memory then grows with one layer's activations instead of all layers', and a step takes about a third longer. What
always holds: gradients are the same bits, since a layer does the same computation twice: nothing in it is random.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from moonmill.errors import ConfigError


def recompute_layers(model: PreTrainedModel) -> None:
    """Have a model's layers computed again in the backward pass; those of copies made later, too.

    transformers has a switch for it, which works in training mode alone; that would bring dropout with it.

    Raises:
        ConfigError: it has no layers that this could be done with.
    """
    layers = outermost(model)
    if not layers:
        raise ConfigError(
            f"learner.gradient_checkpointing: {type(model).__name__} has no layers that can be computed again: set it "
            "to false"
        )
    for layer in layers:
        # A partial of a bound method is copied with its layer, where a function would go on calling the first one.
        layer.forward = partial(_recomputed, layer.forward)


def outermost(module: nn.Module) -> list[nn.Module]:
    """The layers in a module that are computed again as wholes."""
    if isinstance(module, GradientCheckpointingLayer):
        return [module]
    return [layer for child in module.children() for layer in outermost(child)]


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
