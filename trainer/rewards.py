"""Notices when every reward is the same: then no rollout is better than another, and little is learned.

A pure function and a state machine, without I/O.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from moonmill.types import Rollout, Status

_MANY = 64
"""So many alike are no chance any more, for tasks that are solved now and then."""


def alike(rewards: Iterable[tuple[str | None, float | None]]) -> int:
    """How many rollouts of a batch have the same reward as all others in their group; without groups, in the batch.

    Args:
        rewards: group and reward of each rollout.
    """
    compared = defaultdict[str | None, list[float | None]](list)
    for group, reward in rewards:
        compared[group].append(reward)
    # A rollout that is a batch by itself is like no other.
    return sum(len(of) for group, of in compared.items() if len({*of}) == 1 and (group is not None or len(of) > 1))


def learned_of_alike(*, in_groups: bool, critic: bool) -> str:
    """What rewards that are all the same still teach, in words.

    Args:
        in_groups: they are compared in their groups, else in the batch.
        critic: there is one.
    """
    if in_groups:
        return "their rewards teach the policy nothing"
    if critic:
        return "they teach the critic, and the policy only where the critic was wrong"
    return "the policy learns from them only where their tasks came out otherwise before"


class RewardWatch:
    """Looks at the rewards of each batch.

    Args:
        critic: the run has one.
    """

    def __init__(self, *, critic: bool) -> None:
        self._critic = critic
        self._value: float | None = None
        self._count = self._truncated = self._faulty = 0
        self._told = False

    def see(self, rollouts: Sequence[Rollout]) -> str | None:
        """What to warn of, once for each value that all rewards have come to; None where there is nothing new."""
        rewards = [r.reward for r in rollouts if r.reward is not None]
        value = rewards[0] if min(rewards) == max(rewards) else None
        if value is None or value != self._value:
            self._value, self._told = value, False
            self._count = self._truncated = self._faulty = 0
        if value is None or self._told:
            return None
        self._count += len(rollouts)
        self._truncated += sum(r.status is Status.TRUNCATED for r in rollouts)
        self._faulty += sum(bool(r.tool_faults) for r in rollouts)
        if self._count < _MANY:
            return None
        self._told = True
        learned = learned_of_alike(in_groups=rollouts[0].group is not None, critic=self._critic)
        return (
            f"every reward of the last {self._count} rollouts is {value:g}: {learned}. "
            f"{self._truncated / self._count:.0%} of them were truncated, {self._faulty / self._count:.0%} had tool "
            "errors. See `moonmill inspect --rollouts`: a limit may be too low, the tasks too hard or too easy, or the "
            "reward wrong"
        )
