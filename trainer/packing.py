"""From rollouts to tensors: packed micro-batches without padding, and what is known of each action token.

The order is the rollouts' throughout: micro-batches one after the other hold the batch's action tokens in the order of
`Batch`'s flat tensors. A pass computes no padding token; attention stays inside each rollout.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from moonmill.trainer.attention import PackedPlan
from moonmill.types import Action, Rollout, Status


class MicroBatch(NamedTuple):
    """Rollouts in one row of `tokens`."""

    ids: Tensor
    """`[1, tokens]`."""
    positions: Tensor
    """`[1, tokens]`, from 0 in each rollout."""
    plan: PackedPlan
    """Where the rollouts begin and end, for the attention."""
    before: Tensor
    """`[actions]`: for each action token the place in front of it, whose output predicts it and whose state it is valued
    in."""
    last: Tensor
    """`[rollouts]`: the place of each rollout's last action token."""
    actions: slice
    """The action tokens' place in the batch's flat tensors."""


class Batch(NamedTuple):
    """All that a learner step needs. Flat tensors have shape `[actions]`, the rest `[rollouts]`."""

    micro_batches: list[MicroBatch]
    targets: Tensor
    """The sampled token ids."""
    behaviour: Tensor
    """Log-probabilities at sampling time."""
    rewards: Tensor
    """What each action token earned: its turn's reward at the turn's last token, the final rewards at the last of all."""
    lengths: Tensor
    """Action tokens of each rollout."""
    totals: Tensor
    """Each rollout's whole reward."""
    truncated: Tensor
    """1.0 where a limit ended the episode."""
    groups: Tensor
    """A number for each group; without groups, each rollout's own."""
    turns: Tensor
    """The turn each action token belongs to."""
    tokens: int
    """Tokens of all rollouts, observations too."""


def pack(rollouts: Sequence[Rollout], max_tokens: int, device: torch.device | str = "cpu") -> Batch:
    """Pack `rollouts` into micro-batches of at most `max_tokens`; a longer rollout has one to itself.

    Raises:
        ValueError: a rollout has no reward, or an action with nothing in front of it.
    """
    flat = [_flatten(r) for r in rollouts]
    targets: list[int] = []
    behaviour: list[float] = []
    rewards: list[float] = []
    turns: list[int] = []
    for rollout, row in zip(rollouts, flat, strict=True):
        targets += [row.ids[i] for i in row.places]
        behaviour += row.logprobs
        rewards += _rewards(rollout)
        turns += row.turns
    names = {name: i for i, name in enumerate(dict.fromkeys(r.group or r.id for r in rollouts))}
    return Batch(
        micro_batches=_micro_batches(flat, max_tokens, device),
        targets=torch.tensor(targets, device=device),
        behaviour=torch.tensor(behaviour, device=device),
        rewards=torch.tensor(rewards, device=device),
        lengths=torch.tensor([len(row.places) for row in flat], device=device),
        totals=torch.tensor([r.reward or 0.0 for r in rollouts], device=device),
        truncated=torch.tensor([float(r.status is Status.TRUNCATED) for r in rollouts], device=device),
        groups=torch.tensor([names[r.group or r.id] for r in rollouts], device=device),
        turns=torch.tensor(turns, device=device),
        tokens=sum(len(row.ids) for row in flat),
    )


class _Row(NamedTuple):
    ids: list[int]
    places: list[int]
    logprobs: list[float]
    turns: list[int]


def _flatten(rollout: Rollout) -> _Row:
    row = _Row([], [], [], [])
    for segment in rollout.segments:
        if isinstance(segment, Action):
            row.turns.extend([row.turns[-1] + 1 if row.turns else 0] * len(segment.tokens))
            row.places.extend(range(len(row.ids), len(row.ids) + len(segment.tokens)))
            row.logprobs.extend(segment.logprobs)
        row.ids.extend(segment.tokens)
    if not row.places or row.places[0] == 0:
        raise ValueError(f"rollout {rollout.id} has no action token with a context in front of it")
    return row


def _rewards(rollout: Rollout) -> list[float]:
    """The reward of each action token. What belongs to no single turn belongs to the last token."""
    if rollout.reward is None:
        raise ValueError(f"rollout {rollout.id} is unscored")
    rewards: list[float] = []
    unassigned = rollout.reward
    for action, reward in itertools.zip_longest(rollout.actions, rollout.turn_rewards, fillvalue=None):
        if action is not None and action.tokens:
            rewards += [0.0] * len(action.tokens)
            rewards[-1] += reward or 0.0
            unassigned -= reward or 0.0
    rewards[-1] += unassigned
    return rewards


def _micro_batches(rows: Sequence[_Row], max_tokens: int, device: torch.device | str) -> list[MicroBatch]:
    batches = []
    done = 0
    for chunk in _chunks(rows, max_tokens):
        starts = list(itertools.accumulate((len(row.ids) for row in chunk), initial=0))
        places = [start + i for start, row in zip(starts, chunk, strict=False) for i in row.places]
        last = [start + row.places[-1] for start, row in zip(starts, chunk, strict=False)]
        positions = [i for row in chunk for i in range(len(row.ids))]
        batches.append(
            MicroBatch(
                ids=torch.tensor([[i for row in chunk for i in row.ids]], device=device),
                positions=torch.tensor([positions], device=device),
                plan=PackedPlan.of([len(row.ids) for row in chunk], device),
                before=torch.tensor(places, device=device) - 1,
                last=torch.tensor(last, device=device),
                actions=slice(done, done + len(places)),
            )
        )
        done += len(places)
    return batches


def _chunks(rows: Sequence[_Row], max_tokens: int) -> list[list[_Row]]:
    chunks: list[list[_Row]] = []
    size = 0
    for row in rows:
        if not chunks or size + len(row.ids) > max_tokens:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += len(row.ids)
    return chunks
