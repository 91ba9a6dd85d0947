"""Log-probabilities of selected tokens, and the entropies beside them, without ever holding all logits.

Logits are as wide as the vocabulary: 4,096 action tokens of a vocabulary of 262,144 are 4 GiB of them, and an update
needs several times that. So the backbone runs once, and the head goes over its hidden states in chunks of rows, whose
logits are thrown away and made again, a chunk at a time, when gradients are taken. Where all of them fit into one chunk
nothing is made twice.

The head is the model's own forward, with a backbone that hands on what it is given: soft caps, scales, biases and tied
or adapted projections are whatever the model makes of them. A model whose forward cannot be used so is found out when
it is loaded, and keeps its full logits.

What always holds: a row's log-probabilities depend on that row alone, and are float32 whatever the model computes in.
"""

import copy
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from moonmill.agents.engine.sampling import processed_logprobs
from moonmill.types import Sampling

CHUNK = 2**26
"""Most logits in a chunk: 256 MiB of them, and 1 GiB with what is made of them for a gradient. Smaller chunks would
cost time: each one adds to a gradient as large as the head."""
_CACHED = 2**16
"""Numbers that are worked on together where nothing has to be kept of them."""
_TOLERANCE = 1e-5
"""Share of the largest logit by which a head may differ from the model's own: rounding."""
_NEVER = -1e4
"""Below it a probability is 0 in float32, and 0 times this is 0, where 0 times -inf would be nan."""


class Head:
    """From a backbone's hidden states to what is wanted of their distributions.

    Args:
        model: its parameters are used, not copied; it does not change.
        vocabulary: how wide its logits are.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int) -> None:
        self._model = copy.copy(model)
        self._model._modules = {**model._modules, model.base_model_prefix: _Given(model.base_model)}
        self._vocabulary = vocabulary

    def logits(self, hidden: Tensor) -> Tensor:
        """`[rows, vocabulary]` from `[rows, hidden]`."""
        logits: Tensor = self._model(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits[0]
        return logits

    def logprobs(
        self, hidden: Tensor, sampled: Tensor, sampling: Sampling, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `selected_logprobs`, of the logits of `hidden` `[rows, hidden]`."""

        def of(rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
            return selected_logprobs(self.logits(rows), tokens, sampling, entropy_grad)

        size = max(1, CHUNK // self._vocabulary)
        if len(hidden) <= size:
            return of(hidden, sampled)
        chunks = zip(torch.split(hidden, size), torch.split(sampled, size), strict=True)
        # Nothing random is in a head, so no state of generators is kept for the second time.
        parts = [checkpoint(of, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)


def selected_logprobs(
    logits: Tensor, sampled: Tensor, sampling: Sampling, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens, and the entropies of what they were drawn from.

    Args:
        logits: `[rows, vocabulary]`.
        sampled: `[rows]`, the tokens; they stay in the support whatever top-p and top-k leave of it.
        sampling: how they were drawn.
        entropy_grad: whether entropies have a gradient.

    Returns:
        Both `[rows]` in nats, float32.
    """
    everything = processed_logprobs(logits, sampling.temperature, sampling.top_p, sampling.top_k, keep=sampled)
    logprobs = everything.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    # After what has a gradient: where it is all computed again for that, this is not reached.
    return logprobs, _entropies(everything) if entropy_grad else _entropies_alone(everything.detach())


def head_of(model: PreTrainedModel, few_tokens: Callable[[], dict[str, Any]]) -> Head | None:
    """The head of a model, or None where only the model as a whole knows how its logits are made. Found out once.

    Args:
        model: any causal language model.
        few_tokens: makes arguments of its forward, to try it with.
    """
    if model not in _heads:
        _heads[model] = _tried(model, few_tokens())
        if _heads[model] is None:
            name = type(model).__name__
            sys.stderr.write(f"{name} makes logits in a way of its own: all logits of a micro-batch are kept at once\n")
            sys.stderr.flush()
    return _heads[model]


def _entropies(logprobs: Tensor) -> Tensor:
    """Entropy `[rows]` of distributions `[rows, vocabulary]`."""
    return -(logprobs.exp() * logprobs.clamp_min(_NEVER)).sum(-1)


def _entropies_alone(logprobs: Tensor) -> Tensor:
    """The same without a gradient, and so few rows at a time that what is in between stays in the processor's cache."""
    size = max(1, _CACHED // logprobs.shape[-1])
    return torch.cat([_entropies(rows) for rows in torch.split(logprobs, size)])


@torch.no_grad()
def _tried(model: PreTrainedModel, inputs: dict[str, Any]) -> Head | None:
    expected = model(**inputs).logits[0]
    try:
        head = Head(model, expected.shape[-1])
        logits = head.logits(model.base_model(**inputs).last_hidden_state[0])
    except Exception:  # code of any model, called in a way that it was not written for
        return None
    alike = logits.shape == expected.shape and logits.dtype == expected.dtype
    return head if alike and (logits - expected).abs().max() <= _TOLERANCE * expected.abs().max() else None


class _Given(nn.Module):
    """In a backbone's place: hands on the hidden states it is given as embeddings. Otherwise it is that backbone."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        # Not as a module of this one: what belongs to the model is not to be found twice.
        object.__setattr__(self, "_backbone", backbone)

    def forward(self, *args: object, inputs_embeds: Tensor, **others: object) -> "_Output":
        return _Output(last_hidden_state=inputs_embeds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backbone, name)


class _Output(BaseModelOutputWithPast):  # type: ignore[misc]  # transformers has no types here
    """What a backbone would return, whatever else is asked of it being None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


_heads: WeakKeyDictionary[PreTrainedModel, Head | None] = WeakKeyDictionary()
