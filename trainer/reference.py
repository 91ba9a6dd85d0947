"""The initial policy, beside the one that is trained: what a KL penalty is measured against.

What always holds: it is the model of `model.path`, whatever has been trained or restored since. With an adapter it is
the base, the adapter switched off; else a frozen copy.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.trainer.models import Packed, action_logprobs
from moonmill.types import Sampling


class Reference:
    """A policy as it is now, also when that has been trained.

    Args:
        policy: not trained yet.
        adapter: whether an adapter is what will be trained of it; it is in place.
    """

    def __init__(self, policy: PreTrainedModel, *, adapter: bool) -> None:
        self._model = policy if adapter else copy.deepcopy(policy).requires_grad_(False)
        self._adapter = adapter

    @torch.no_grad()
    def logprobs(self, packed: Packed, sampling: Sampling) -> Tensor:
        """Log-probabilities of the action tokens, `[action tokens]`, without gradient."""
        if not self._adapter:
            return action_logprobs(self._model, packed, sampling)[0]
        with _adapters_off(self._model):
            return action_logprobs(self._model, packed, sampling)[0]


@contextmanager
def _adapters_off(model: nn.Module) -> Iterator[None]:
    """The model without what adapters add, and afterwards exactly as it was."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # takes a second to import, and is there where it is needed

    layers = [
        module for module in model.modules() if isinstance(module, BaseTunerLayer) and not module.disable_adapters
    ]
    # PEFT decides anew what is trained when it switches an adapter off and on.
    trained = {parameter: parameter.requires_grad for parameter in model.parameters()}
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, wanted in trained.items():
            parameter.requires_grad_(wanted)
