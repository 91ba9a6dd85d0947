"""What an engine takes, part by part: pure formulas on a model's shape. docs/planning.md has them in one place.

vLLM takes the share `engine.vllm.gpu_memory` of a card, whatever it needs. Weights, adapter slots, the workspace of its
largest step and CUDA come off it; what is left holds keys and values, so that a share that is too small means fewer
episodes at once, or none. The embedded engine takes what it needs: nothing is set aside.
"""

from msgspec import Struct

from moonmill.agents.engine.vllm_command import batched_tokens, rank_for
from moonmill.config import Config
from moonmill.trainer.engine_commands import eval_places, slots_needed
from moonmill.trainer.planning.learner_memory import CONTEXT
from moonmill.trainer.planning.parts import BYTES, GIB, Part, count, gib, total
from moonmill.trainer.planning.shapes import Shape

GRAPHS = int(0.5 * GIB)
"""Of vLLM's CUDA graphs."""
_BATCHED = 2048
"""Tokens of a step of vLLM's server (`max_num_batched_tokens`) on cards with less than 70 GiB,"""
_BATCHED_LARGE = 8192
"""and on larger ones."""
_LARGE = 70 * GIB
_A_LOGIT = 12
"""Bytes for every logit of the requests of a step: float32, and twice that while they are sampled from."""


class EnginePlan(Struct, frozen=True):
    """One engine on one card."""

    parts: tuple[Part, ...]
    tokens: int
    """Tokens of episodes of full length that its keys and values have room for."""
    episodes: int
    """Such episodes at once."""
    wanted: int
    """Episodes it is to hold at once."""
    lacking: int = 0
    """Bytes that its share of the card is too small by for one such episode."""

    @property
    def bytes(self) -> int:
        return total(self.parts)


def vllm_plan(config: Config, shape: Shape, memory: int | None) -> EnginePlan:
    """vLLM on a card of so many bytes; None is a CPU, where keys and values have a size of their own."""
    vllm, width, length = config.engine.vllm, BYTES[config.model.dtype], config.model.max_length
    fixed = [Part("weights", shape.parameters * width, f"{count(shape.parameters)}, {config.model.dtype}{_ple(shape)}")]
    if config.model.lora:
        slots, rank = vllm.max_loras or slots_needed(config), rank_for(config.model.lora.r)
        room = sum(p.adapter(rank) for layer in shape.layers for p in layer.projections)
        fixed.append(Part("adapter slots", slots * room * width, f"{slots} of rank {rank}"))
    fixed.append(
        Part("workspace", _workspace(config, shape, memory or 0), "activations and logits of the largest step")
    )
    if memory is None:
        left, why = int(vllm.kv_cache_gib * GIB), "engine.vllm.kv_cache_gib"
    else:
        fixed.append(Part("CUDA", CONTEXT + GRAPHS, "context, libraries and graphs"))
        share = int(vllm.gpu_memory * memory)
        left, why = share - total(tuple(fixed)), f"what is left of {vllm.gpu_memory:g} of the card"
        if left < 0:
            why = f"nothing is left of {vllm.gpu_memory:g} of the card: what is above takes {gib(-left)} more than that"
    each, room = episode_bytes(config, shape, length), max(0, left)
    held = Part("keys and values", room, why)
    lacking = 0 if room >= each else each - left
    return EnginePlan((*fixed, held), int(room / each * length), room // each, places(config), lacking)


def embedded_plan(config: Config, shape: Shape, *, gpu: bool) -> EnginePlan:
    """Our own engine: slots of equal length, sliding windows or not, and weights of each version."""
    width, length, slots = BYTES[config.model.dtype], config.model.max_length, config.engine.max_batch
    slots += eval_places(config)
    versions = slots_needed(config) - 1
    changed = _merged(config, shape)
    parts = [
        Part("weights", shape.parameters * width, f"{count(shape.parameters)}, {config.model.dtype}{_ple(shape)}"),
        Part("versions", versions * changed * width, f"{versions} more at once, {count(changed)} each"),
        Part(
            "keys and values",
            slots * sum(layer.keys for layer in shape.layers) * length * width,
            f"{slots} slots of {length:,} tokens",
        ),
        Part("logits", _A_LOGIT * slots * shape.vocabulary, f"of {slots} requests"),
    ]
    if gpu:
        parts.append(Part("CUDA context", CONTEXT, "and the libraries of kernels"))
    return EnginePlan(tuple(parts), slots * length, slots, min(slots, places(config)))


def episode_bytes(config: Config, shape: Shape, length: int) -> int:
    """Keys, values and states of one episode of that length: sliding layers keep their window alone."""
    return max(1, shape.keys_of(length) * BYTES[config.model.dtype] + shape.states)


def places(config: Config) -> int:
    """Episodes that one engine is asked for at once."""
    engines = len(config.engine.urls) or config.engine.replicas
    return min(config.engine.max_batch, -(-config.async_.max_concurrent // engines)) + eval_places(config)


def _workspace(config: Config, shape: Shape, memory: int) -> int:
    """Of the widest layer in the largest step, in and out, and of the logits of all requests."""
    default = _BATCHED_LARGE if memory >= _LARGE else _BATCHED
    tokens = batched_tokens(config.engine.vllm.args) or default
    widest = max(layer.widened + 3 * layer.queries for layer in shape.layers) + 4 * shape.hidden
    logits = (config.engine.max_batch + eval_places(config)) * shape.vocabulary
    return tokens * widest * BYTES[config.model.dtype] + _A_LOGIT * logits


def _merged(config: Config, shape: Shape) -> int:
    """Weights that a version has of its own: all, or those that an adapter is merged into."""
    if config.model.lora is None:
        return shape.parameters
    return sum(p.weights for layer in shape.layers for p in layer.policy)


def _ple(shape: Shape) -> str:
    return f", of them {count(shape.lookups)} per-layer embeddings" if shape.lookups else ""
