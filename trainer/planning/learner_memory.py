"""What the learner takes, part by part: pure formulas on a model's shape. docs/planning.md has them in one place.

Bytes a number, with e = 4 in float32 and 2 in bfloat16:

- weights: all trained, 4 (master weights are float32). The base of an adapter: e; with 8-bit quantization 1 and 4 a
  row (LLM.int8, arXiv 2208.07339); with 4-bit 1/2, 1 for every 64, and 4 for 256 of these (NF4 and double
  quantization, arXiv 2305.14314). Embeddings, head, norms and experts that stand in one parameter are not quantized.
- what is trained: 4 for itself, 4 for its gradient, 8 for the two moments of AdamW, all float32. Policy and critic are
  updated one after the other, so that of their gradients only the larger counts.
- activations: what autograd keeps for the backward pass, counted operation by operation (`kept`), and the gradients
  that are in flight in an MLP.
- logits: `CHUNK` of them at a time, 16 bytes each with what is made of them for a gradient.
"""

from functools import partial

from moonmill.config import Config
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm
from moonmill.trainer.logprobs import CHUNK
from moonmill.trainer.planning.parts import BYTES, GIB, Part, count
from moonmill.trainer.planning.shapes import Layer, Projection, Shape

CONTEXT = int(0.6 * GIB)
"""Of CUDA and of the kernels' libraries, which no allocator sees: nvidia-smi shows 0.4 to 0.7 GiB for a process that
has multiplied two matrices, by card and version."""
_SLACK = 0.05
"""Share of activations that the allocator's blocks leave unused, with expandable segments."""
_BLOCK = 64
"""Weights that share a quantization constant in 4 bits,"""
_BLOCKS = 256
"""and such constants that share one of theirs."""
_A_LOGIT = 16
"""Bytes: its float32, its log-probability, the gradients of both."""
_GRADIENT, _MOMENTS = 4, 8


def learner_parts(config: Config, algorithm: ResolvedAlgorithm, shape: Shape, *, gpu: bool) -> tuple[Part, ...]:
    """Everything the learner holds at its peak, in the middle of a backward pass.

    Args:
        config: the run's.
        algorithm: its algorithm.
        shape: the model's.
        gpu: whether it computes on one.
    """
    policy, critic = policy_trained(config, shape), critic_trained(config, algorithm, shape)
    trained = policy + critic
    parts = [Part("weights", base_bytes(config, shape), _described(config, shape))]
    if config.model.lora:
        parts.append(Part("policy adapter", 4 * policy, f"{count(policy)}, float32"))
    if algorithm.critic:
        parts.append(_critic_part(config, algorithm, shape, critic))
    if algorithm.kl is not None and algorithm.kl.coef > 0 and config.model.lora is None:
        parts.append(Part("initial policy", 4 * shape.parameters, "a float32 copy, for algorithm.kl"))
    parts.append(Part("gradients", _GRADIENT * max(policy, critic), "float32, of policy or critic", passing=True))
    parts.append(Part("AdamW", _MOMENTS * trained, f"two float32 moments of {count(trained)}"))
    parts += _passes(config, algorithm, shape, slack=_SLACK if gpu else 0.0)
    if gpu:
        parts.append(Part("CUDA context", CONTEXT, "and the libraries of kernels"))
    return tuple(parts)


def tokens_at_once(config: Config) -> int:
    """Tokens of the largest micro-batch: the budget, but never less than the longest rollout or more than a batch."""
    longest = config.model.max_length
    return max(longest, min(config.learner.micro_batch_tokens, config.learner.batch_rollouts * longest))


def base_bytes(config: Config, shape: Shape) -> int:
    """The policy's own weights."""
    if config.model.lora is None:
        return 4 * shape.parameters
    width, rest = BYTES[config.model.dtype], shape.parameters - shape.quantizable
    match config.learner.quantization:
        case "4bit":
            blocks = shape.quantizable // _BLOCK
            return rest * width + shape.quantizable // 2 + blocks + 4 * (blocks // _BLOCKS)
        case "8bit":
            return rest * width + shape.quantizable + 4 * shape.quantizable_rows
        case _:
            return shape.parameters * width


def policy_trained(config: Config, shape: Shape) -> int:
    """Numbers of the policy that get gradients."""
    lora = config.model.lora
    return shape.adapted * lora.r if lora else shape.parameters - shape.towers


def critic_trained(config: Config, algorithm: ResolvedAlgorithm, shape: Shape) -> int:
    """Numbers of the critic that get gradients; 0 without one."""
    critic = algorithm.critic
    if critic is None:
        return 0
    head = shape.hidden + 1
    places = [p for layer in shape.layers for p in layer.critic]
    if critic.lora:
        return head + sum(p.adapter(critic.lora.r) for p in places)
    return head + (sum(p.weights for p in places) if critic.freeze_attention else shape.backbone - shape.towers)


def kept(
    layer: Layer,
    trained: tuple[Projection, ...],
    rank: int | None,
    *,
    tokens: int,
    longest: int,
    width: int,
    hidden: int,
) -> int:
    """Bytes that autograd keeps of one layer for its backward pass.

    Of each token, with e bytes a number:

    - every norm keeps what it was given, in float32, and with a weight that is trained what it makes of it;
    - attention keeps queries, keys and values of all heads, what comes of them, and a float32 for each head;
    - an MLP with a gate keeps three times its width, one without once; of experts those that a token goes through, with
      what goes in and comes out of each;
    - a projection that is trained keeps its input: in float32 several that read the same share it, in bfloat16 each
      casts a copy of its own from float32. Frozen ones keep nothing but their weights;
    - A's output of each adapter, its rank.

    Besides, whatever the tokens: 16-bit copies of float32 weights that are trained, and the mask of a window that is
    shorter than the rollouts.

    Args:
        layer: its shape.
        trained: the projections that are trained, or have an adapter that is.
        rank: of that adapter; None where the projections themselves are trained.
        tokens: of the micro-batch,
        longest: and of its longest rollout.
        width: e.
        hidden: width of the residual stream.
    """
    numbers = 4 * layer.queries + layer.widened + 2 * layer.experts_used * hidden
    times = {p: layer.experts_used if p.experts > 1 else 1 for p in trained}
    numbers += sum(p.inputs * times[p] for p in trained) if width < 4 else _shared_inputs(trained, hidden)
    numbers += (rank or 0) * sum(times[p] for p in trained)
    norms = layer.norms * (4 if rank is not None else 8)
    weights = sum(p.weights if rank is None else p.adapter(rank) for p in trained)
    copies = width * weights if width < 4 else 0
    mask = width * longest**2 if layer.window is not None and layer.window < longest else 0
    return tokens * (width * numbers + norms + 4 * layer.heads) + copies + mask


def _shared_inputs(trained: tuple[Projection, ...], hidden: int) -> int:
    """Widths of the different inputs of projections: those in one module read the same, but for the last of them."""
    inputs = 0
    for parent in {p.parent for p in trained}:
        widths = [p.inputs for p in trained if p.parent == parent]
        others = [w for w in widths if w != hidden]
        inputs += hidden * (len(others) < len(widths)) + (sum(others) if others else hidden * (len(widths) > 1))
    return inputs


def _passes(config: Config, algorithm: ResolvedAlgorithm, shape: Shape, slack: float) -> list[Part]:
    """What passes over the largest micro-batch take."""
    tokens, width, again = tokens_at_once(config), BYTES[config.model.dtype], config.learner.gradient_checkpointing
    of_layer = partial(kept, tokens=tokens, longest=config.model.max_length, width=width, hidden=shape.hidden)
    lora, critic, layers = config.model.lora, algorithm.critic, shape.layers
    by_layer = [of_layer(x, x.policy if lora else x.projections, lora.r if lora else None) for x in layers]
    if critic:
        rank = critic.lora.r if critic.lora else None
        by_layer = max(by_layer, [of_layer(x, x.critic, rank) for x in layers], key=sum)
    # In the backward pass of an MLP the gradients of two of the three that it keeps are there with them.
    in_flight = 2 * tokens * width * max(layer.widened for layer in layers) // 3
    rows = min(tokens, max(1, CHUNK // shape.vocabulary))
    logits = _A_LOGIT * rows * shape.vocabulary
    if lora is None:
        logits += 4 * shape.head + (width * shape.head if width < 4 else 0)
    if config.learner.quantization:  # a matrix is dequantized whole, one at a time
        logits = max(logits, width * shape.largest)
    if again:
        # Logits are gone again before a layer is computed again.
        held = (4 if lora is None else width) * shape.hidden * tokens * len(layers) + max(by_layer)
        logits = max(0, logits - max(by_layer))
        detail = f"{tokens:,} tokens, inputs of {len(layers)} layers and one layer computed again"
    else:
        held, detail = sum(by_layer), f"{tokens:,} tokens, all {len(layers)} layers"
    more = ", beyond what that layer takes" * again
    return [
        Part("activations", int((held + in_flight) * (1 + slack)), detail, passing=True),
        Part("logits", logits, f"{rows:,} of {shape.vocabulary:,} at a time{more}", passing=True),
    ]


def _critic_part(config: Config, algorithm: ResolvedAlgorithm, shape: Shape, trained: int) -> Part:
    critic = algorithm.critic
    assert critic
    if critic.lora is None:
        return Part(
            "critic", 4 * (shape.backbone + shape.hidden + 1), f"a float32 copy, {count(trained)} of it trained"
        )
    own = 0 if config.model.lora else BYTES[config.model.dtype] * shape.backbone
    where = "on the policy's base" if config.model.lora else f"on a copy of the model in {config.model.dtype}"
    return Part("critic adapter", own + 4 * trained, f"{count(trained)}, float32, {where}")


def _described(config: Config, shape: Shape) -> str:
    if config.model.lora is None:
        return f"{count(shape.parameters)}, float32"
    bits = {"4bit": "4 bits", "8bit": "8 bits"}.get(config.learner.quantization or "")
    if not bits:
        return f"{count(shape.parameters)}, {config.model.dtype}"
    rest = shape.parameters - shape.quantizable
    return f"{count(shape.quantizable)} in {bits}, {count(rest)} in {config.model.dtype}{_unquantized(shape)}"


def _unquantized(shape: Shape) -> str:
    """What most of the weights are that stay as they are."""
    if shape.expert_weights:
        return f", of them {count(shape.expert_weights)} experts"
    if shape.lookups:
        return f", of them {count(shape.lookups)} per-layer embeddings"
    return ""
