"""Rollouts laid end to end: micro-batches without padding.

A rollout is one sequence, or several where it has branches: each is a context of its own, with the rollout's reward.
What always holds: every sequence of a batch is in exactly one micro-batch, whole; a micro-batch has at most `budget`
tokens, unless a single sequence alone has more; tokens are those that were sampled and observed, untouched. The order
depends on the rollouts alone: shortest first, so that neighbours are of similar length, which is what attention likes.
Where a batch is cut into parts, which updates take one after the other, a micro-batch is of one part, and so are all
sequences of a rollout.

The log-probability of a token, and the value of the context before it, are read one place to its left: `before`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moonmill.errors import RunError
from moonmill.trainer.algorithms.gae import place_rewards
from moonmill.types import Action, Rollout, Segment, Status


@dataclass(frozen=True)
class MicroBatch:
    """Some sequences of a batch as one row of tokens. `T` tokens, `A` action tokens, `V` valued, `S` sequences."""

    rollouts: tuple[int, ...]
    """`[S]`, the place in the batch of the rollout that each is of."""
    tokens: Tensor
    """`[T]`."""
    positions: Tensor
    """`[T]`, counted from each sequence's own begin."""
    cu_seqlens: Tensor
    """`[S + 1]` int32, where sequences begin and end in the row."""
    actions: Tensor
    """`[A]`, where the action tokens stand in the row."""
    behaviour: Tensor
    """`[A]`, log-probabilities as sampled."""
    versions: Tensor
    """`[A]`, the policy version that sampled each."""
    rewards: Tensor
    """`[A]`, each reward at the last token of its action."""
    action_lengths: tuple[int, ...]
    """`[S]`, action tokens of each sequence."""
    rollout_lengths: tuple[int, ...]
    """`[S]`, action tokens of the whole rollout that each is of."""
    oldest: Tensor
    """`[S]`, the oldest version that sampled a token of the whole rollout."""
    valued: Tensor
    """`[V]`, where the tokens stand before which the critic has a value, the steps of GAE: `actions`, or every token
    from a sequence's first action on."""
    valued_lengths: tuple[int, ...]
    """`[S]`, such tokens of each sequence."""
    turn_lengths: tuple[tuple[int, ...], ...]
    """`[S][turns]`, tokens of each action."""
    truncated: Tensor
    """`[S]`, 1 where a limit ended the episode."""
    part: int = 0
    """The part of the batch its sequences are of."""

    @property
    def before(self) -> Tensor:
        """`[A]`, where the context of each action token ends."""
        return self.actions - 1

    @property
    def acting(self) -> Tensor:
        """`[A]`, which of those valued are action tokens."""
        return torch.searchsorted(self.valued, self.actions)

    @property
    def ends(self) -> Tensor:
        """`[S]`, where each sequence ends: its last token, be it sampled or observed."""
        return self.cu_seqlens[1:].long() - 1

    @property
    def sampled(self) -> Tensor:
        """`[A]`, the action tokens themselves."""
        return self.tokens[self.actions]

    def to(self, device: torch.device) -> "MicroBatch":
        """The same, elsewhere."""
        if device == self.tokens.device:
            return self
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def pack(
    rollouts: Sequence[Rollout], budget: int, parts: int = 1, *, skip_observations: bool = True
) -> tuple[MicroBatch, ...]:
    """Micro-batches of at most `budget` tokens; a longer sequence gets one of its own.

    Args:
        rollouts: scored, each with at least one action token.
        budget: tokens in one forward pass.
        parts: so many parts of about equally many rollouts, in their order.
        skip_observations: only action tokens are valued.

    Raises:
        RunError: a rollout that cannot be trained on.
    """
    for rollout in rollouts:
        _check(rollout)
    part = [i * parts // len(rollouts) for i in range(len(rollouts))]
    sequences = [
        _Sequence(i, number, context) for i, r in enumerate(rollouts) for number, context in enumerate(r.contexts)
    ]
    bins: list[list[_Sequence]] = []
    filled = budget
    for sequence in sorted(sequences, key=lambda s: (part[s.rollout], s.size, s.rollout, s.number)):
        if filled + sequence.size > budget or part[sequence.rollout] != part[bins[-1][0].rollout]:
            bins.append([])
            filled = 0
        bins[-1].append(sequence)
        filled += sequence.size
    return tuple(_micro_batch(rollouts, some, part[some[0].rollout], skip_observations) for some in bins)


class _Sequence(NamedTuple):
    """One context of a rollout."""

    rollout: int
    """The rollout's place in the batch."""
    number: int
    """The context's, in the rollout."""
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        return sum(len(s.tokens) for s in self.segments)


def _micro_batch(
    rollouts: Sequence[Rollout], sequences: Sequence[_Sequence], part: int, skip_observations: bool
) -> MicroBatch:
    tokens: list[int] = []
    positions: list[int] = []
    bounds = [0]
    actions: list[int] = []
    valued: list[int] = []
    valued_lengths: list[int] = []
    behaviour: list[float] = []
    versions: list[int] = []
    rewards: list[float] = []
    turns: list[tuple[int, ...]] = []
    whole = [rollouts[s.rollout] for s in sequences]
    for rollout, sequence in zip(whole, sequences, strict=True):
        acted = len(actions)
        lengths = []
        for segment in sequence.segments:
            if isinstance(segment, Action):
                actions += range(len(tokens), len(tokens) + len(segment.tokens))
                behaviour += segment.logprobs
                versions += segment.versions
                lengths.append(len(segment.tokens))
            tokens += segment.tokens
        steps = actions[acted:] if skip_observations else range(actions[acted], len(tokens))
        valued += steps
        valued_lengths.append(len(steps))
        positions += range(len(tokens) - bounds[-1])
        bounds.append(len(tokens))
        turns.append(tuple(lengths))
        # Turns are those of `segments`: a branch has the whole reward at its end.
        by_turn = rollout.turn_rewards if sequence.segments is rollout.segments else ()
        rewards += place_rewards(rollout.reward or 0.0, by_turn, turns[-1])
    return MicroBatch(
        rollouts=tuple(s.rollout for s in sequences),
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        cu_seqlens=torch.tensor(bounds, dtype=torch.int32),
        actions=torch.tensor(actions),
        behaviour=torch.tensor(behaviour),
        versions=torch.tensor(versions),
        rewards=torch.tensor(rewards),
        action_lengths=tuple(map(sum, turns)),
        rollout_lengths=tuple(r.action_tokens for r in whole),
        oldest=torch.tensor([r.oldest_version for r in whole]),
        valued=torch.tensor(valued),
        valued_lengths=tuple(valued_lengths),
        turn_lengths=tuple(turns),
        truncated=torch.tensor([float(r.status is Status.TRUNCATED) for r in whole]),
        part=part,
    )


def _check(rollout: Rollout) -> None:
    if rollout.reward is None:
        raise RunError(f"rollout {rollout.id} is unscored and cannot be trained on")
    if not rollout.action_tokens:
        raise RunError(f"rollout {rollout.id} has no action tokens and cannot be trained on")
    firsts = [next(s for s in context if s.tokens) for context in rollout.contexts]
    if any(isinstance(first, Action) for first in firsts):
        raise RunError(f"rollout {rollout.id} begins with an action: its first token was sampled from no context")
    for number, action in enumerate(rollout.actions):
        if not len(action.tokens) == len(action.logprobs) == len(action.versions):
            raise RunError(
                f"rollout {rollout.id}, action {number}: {len(action.tokens)} tokens, {len(action.logprobs)} "
                f"log-probabilities and {len(action.versions)} versions, which should be equally many"
            )
