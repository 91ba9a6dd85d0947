"""Notices when every reward is the same: then no rollout is better than another, and nothing is learned.

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


class RewardWatch:
    """Looks at the rewards of each batch."""

    def __init__(self) -> None:
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
        return (
            f"every reward of the last {self._count} rollouts is {value:g}, so there is nothing to learn from them. "
            f"{self._truncated / self._count:.0%} of them were truncated, {self._faulty / self._count:.0%} had tool "
            "errors. See `moonmill inspect --rollouts`: a limit may be too low, the tasks too hard or too easy, or the "
            "reward wrong"
        )
