"""Rollouts laid end to end: micro-batches without padding.

What always holds: every rollout of a batch is in exactly one micro-batch, whole; a micro-batch has at most `budget`
tokens, unless a single rollout alone has more; tokens are those that were sampled and observed, untouched. The order
depends on the rollouts alone: shortest first, so that neighbours are of similar length, which is what attention likes.
Where a batch is cut into parts, which updates take one after the other, a micro-batch is of one part.

The log-probability of a token, and the value of the context before it, are read one place to its left: `before`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from moonmill.errors import RunError
from moonmill.trainer.algorithms.gae import place_rewards
from moonmill.types import Action, Rollout, Status


@dataclass(frozen=True)
class MicroBatch:
    """Some rollouts of a batch as one row of tokens. `T` tokens, `A` action tokens, `V` valued, `R` rollouts."""

    rollouts: tuple[int, ...]
    """`[R]`, their places in the batch."""
    tokens: Tensor
    """`[T]`."""
    positions: Tensor
    """`[T]`, counted from each rollout's own begin."""
    cu_seqlens: Tensor
    """`[R + 1]` int32, where rollouts begin and end in the row."""
    actions: Tensor
    """`[A]`, where the action tokens stand in the row."""
    behaviour: Tensor
    """`[A]`, log-probabilities as sampled."""
    versions: Tensor
    """`[A]`, the policy version that sampled each."""
    rewards: Tensor
    """`[A]`, each reward at the last token of its action."""
    action_lengths: tuple[int, ...]
    """`[R]`, action tokens of each rollout."""
    valued: Tensor
    """`[V]`, where the tokens stand before which the critic has a value, the steps of GAE: `actions`, or every token
    from a rollout's first action on."""
    valued_lengths: tuple[int, ...]
    """`[R]`, such tokens of each rollout."""
    turn_lengths: tuple[tuple[int, ...], ...]
    """`[R][turns]`, tokens of each action."""
    truncated: Tensor
    """`[R]`, 1 where a limit ended the episode."""
    part: int = 0
    """The part of the batch its rollouts are of."""

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
        """`[R]`, where each rollout ends: its last token, be it sampled or observed."""
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
    """Micro-batches of at most `budget` tokens; a longer rollout gets one of its own.

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
    order = sorted(range(len(rollouts)), key=lambda i: (part[i], rollouts[i].tokens, i))
    bins: list[list[int]] = []
    filled = budget
    for index in order:
        size = rollouts[index].tokens
        if filled + size > budget or part[index] != part[bins[-1][0]]:
            bins.append([])
            filled = 0
        bins[-1].append(index)
        filled += size
    return tuple(_micro_batch(rollouts, indices, part[indices[0]], skip_observations) for indices in bins)


def _micro_batch(rollouts: Sequence[Rollout], indices: Sequence[int], part: int, skip_observations: bool) -> MicroBatch:
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
    for index in indices:
        rollout = rollouts[index]
        acted = len(actions)
        for segment in rollout.segments:
            if isinstance(segment, Action):
                actions += range(len(tokens), len(tokens) + len(segment.tokens))
                behaviour += segment.logprobs
                versions += segment.versions
            tokens += segment.tokens
        steps = actions[acted:] if skip_observations else range(actions[acted], len(tokens))
        valued += steps
        valued_lengths.append(len(steps))
        positions += range(len(tokens) - bounds[-1])
        bounds.append(len(tokens))
        turns.append(tuple(len(a.tokens) for a in rollout.actions))
        rewards += place_rewards(rollout.reward or 0.0, rollout.turn_rewards, turns[-1])
    return MicroBatch(
        rollouts=tuple(indices),
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        cu_seqlens=torch.tensor(bounds, dtype=torch.int32),
        actions=torch.tensor(actions),
        behaviour=torch.tensor(behaviour),
        versions=torch.tensor(versions),
        rewards=torch.tensor(rewards),
        action_lengths=tuple(map(sum, turns)),
        valued=torch.tensor(valued),
        valued_lengths=tuple(valued_lengths),
        turn_lengths=tuple(turns),
        truncated=torch.tensor([float(rollouts[i].status is Status.TRUNCATED) for i in indices]),
        part=part,
    )


def _check(rollout: Rollout) -> None:
    if rollout.reward is None:
        raise RunError(f"rollout {rollout.id} is unscored and cannot be trained on")
    if not rollout.action_tokens:
        raise RunError(f"rollout {rollout.id} has no action tokens and cannot be trained on")
    first = next(s for s in rollout.segments if s.tokens)
    if isinstance(first, Action):
        raise RunError(f"rollout {rollout.id} begins with an action: its first token was sampled from no context")
    for number, action in enumerate(rollout.actions):
        if not len(action.tokens) == len(action.logprobs) == len(action.versions):
            raise RunError(
                f"rollout {rollout.id}, action {number}: {len(action.tokens)} tokens, {len(action.logprobs)} "
                f"log-probabilities and {len(action.versions)} versions, which should be equally many"
            )
