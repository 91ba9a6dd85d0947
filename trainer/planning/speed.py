"""Tokens a second by a roofline: the larger of what must be read by what a card or processor reads, and what must be
computed by what it computes, at a share of both that real programs reach. Pure. What it cannot know it assumes, and
says so.

A step of decoding reads all weights a token is multiplied with, of experts those that any of the n episodes goes
through, and the keys and values of all episodes; it computes 2 operations a weight and token. Training computes, a
token: 2 a weight forward (F), once more backward for the inputs' gradients, and for the weights' own where those are
trained; F again with gradient checkpointing; and attention, 2 × 2 × width of queries × half the length in each layer.
"""

from msgspec import Struct

from moonmill.config import Config
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm
from moonmill.trainer.planning.engine_memory import episode_bytes
from moonmill.trainer.planning.gpus import Rates
from moonmill.trainer.planning.parts import BYTES
from moonmill.trainer.planning.shapes import Shape

READS = 0.6
"""Share of the bandwidth that decoding reaches."""
COMPUTES = 0.35
"""Share of the throughput that training, and decoding where it computes rather than reads, reaches."""
LENGTH = 0.5
"""Length of an episode that is assumed, as a share of `model.max_length`,"""
SAMPLED = 0.5
"""and the share of its tokens that are sampled."""


class Speed(Struct, frozen=True):
    """What can be expected, each part alone on its card or processor."""

    decoding: Rates
    """Of what the engines compute on,"""
    training: Rates
    """and of what the learner does."""
    decoded: float
    """Sampled tokens a second, all engines together."""
    trained: float
    """Tokens a second that the learner goes through, a whole step's passes counted as one."""
    generation_seconds: float
    """For the rollouts of one step."""
    learning_seconds: float

    @property
    def bottleneck(self) -> str:
        return "generation" if self.generation_seconds > self.learning_seconds else "learning"


def speed_of(
    config: Config,
    algorithm: ResolvedAlgorithm,
    shape: Shape,
    decoding: Rates,
    training: Rates,
    episodes: int,
    engines: int,
) -> Speed:
    """What to expect.

    Args:
        config: the run's.
        algorithm: its algorithm.
        shape: the model's.
        decoding: of an engine's card or processor.
        training: of the learner's.
        episodes: in flight on one engine, at least one.
        engines: how many there are.
    """
    length = max(1, int(config.model.max_length * LENGTH))
    decoded = engines * episodes / _decode_seconds(config, shape, decoding, episodes, length)
    trained = COMPUTES * training.flops / _trained_operations(config, algorithm, shape, length)
    tokens = config.learner.batch_rollouts * length
    return Speed(decoding, training, decoded, trained, tokens * SAMPLED / decoded, tokens / trained)


def _decode_seconds(config: Config, shape: Shape, rates: Rates, episodes: int, length: int) -> float:
    used = sum(
        p.inputs * p.outputs * layer.experts_used for layer in shape.layers for p in layer.projections if p.experts > 1
    )
    share = used / shape.expert_weights if used else 0.0
    reached = shape.expert_weights * (1 - (1 - share) ** episodes)
    read = BYTES[config.model.dtype] * (shape.active - used + shape.head + reached)
    read += episodes * episode_bytes(config, shape, length)
    return max(read / (READS * rates.bandwidth), 2 * episodes * (shape.active + shape.head) / (COMPUTES * rates.flops))


def _trained_operations(config: Config, algorithm: ResolvedAlgorithm, shape: Shape, length: int) -> float:
    """Operations of a whole step, for each token of its batch."""
    attention = sum(2 * layer.queries * min(length, layer.window or length) for layer in shape.layers)
    layers, head = 2 * shape.active + attention, 2 * shape.head * SAMPLED
    again = layers * config.learner.gradient_checkpointing
    backward = 1 if config.model.lora else 2
    policy = ((layers + head) * (1 + backward) + again) * algorithm.updates / algorithm.minibatches
    if algorithm.kl is not None and algorithm.kl.coef > 0:
        policy += layers + head
    if algorithm.critic is None:
        return policy
    backward = 1 if algorithm.critic.lora else 2
    return policy + (layers * (1 + backward) + again) * algorithm.critic.updates
