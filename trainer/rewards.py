"""Notices when every reward is the same: then no rollout is better than another, and nothing is learned.

A state machine without I/O.
"""

from collections.abc import Sequence

_MANY = 64
"""So many alike are no chance any more, for tasks that are solved now and then."""


class RewardWatch:
    """Looks at the rewards of each batch."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._count = 0
        self._told = False

    def see(self, rewards: Sequence[float]) -> str | None:
        """What to warn of, once for each value that all rewards have come to; None where there is nothing new."""
        value = rewards[0] if min(rewards) == max(rewards) else None
        if value is None or value != self._value:
            self._value, self._count, self._told = value, 0, False
        if value is None or self._told:
            return None
        self._count += len(rewards)
        if self._count < _MANY:
            return None
        self._told = True
        return (
            f"every reward of the last {self._count} rollouts is {value:g}, so there is nothing to learn from them: "
            "see `moonmill inspect --rollouts`; the tasks may be too hard or too easy, or the reward wrong"
        )
