"""Rollouts between the episode and the learner: a state machine without I/O or clock.

Every admitted rollout leaves exactly once: in a batch, or dropped with a reason: nothing can be learned from it, it is
too old, or a filter says so (`moonmill.trainer.filters`). Batches are taken by windowed FIFO: among the oldest `window`
admitted, the first that are finished. So a slow episode is not waited for, and since the window does not move past it,
it is not starved either.

The unit is a group: of one rollout in single-rollout mode, of `group_size` in the group modes. Rollout `index` belongs
to the unit `index // group_size`.
"""

from collections import Counter
from collections.abc import Container, Iterable

from msgspec import Struct

from moonmill.config import FiltersConfig
from moonmill.trainer.filters import Filters
from moonmill.types import Rollout, Status


class Drop(Struct, frozen=True):
    """A rollout that will not be trained on, and why."""

    rollout: str
    reason: str


class Batch(Struct, frozen=True):
    """What one learner step consumes."""

    rollouts: tuple[Rollout, ...]
    staleness: tuple[int, ...]
    """Versions between the policy about to be updated and the oldest token, per rollout."""


class Buffer:
    """Admitted rollouts, running and finished.

    Args:
        batch_units: units in a batch.
        window: the oldest so many units are looked at; at least `batch_units`.
        max_staleness: older rollouts are dropped when they would be consumed.
        group_size: rollouts in a unit.
        min_valid: a unit is kept while so many of its members can be trained on.
        filters: judge what could be trained on; None lets all of it pass.
    """

    def __init__(
        self,
        *,
        batch_units: int,
        window: int,
        max_staleness: int,
        group_size: int = 1,
        min_valid: int = 1,
        filters: Filters | None = None,
    ) -> None:
        if window < batch_units:
            raise ValueError(f"window {window} is smaller than a batch of {batch_units}")
        self.batch_units = batch_units
        self.window = window
        self.max_staleness = max_staleness
        self.group_size = group_size
        self.min_valid = min_valid
        self.filters = filters or Filters(FiltersConfig())
        self.accepted = 0
        """Rollouts that were consumed or may yet be, without the running ones. Of a unit that is consumed all members
        count, those that could not be trained on as well: it has taken so many places of its batch."""
        self.running = 0
        self.useless: Counter[str] = Counter()
        """Why rollouts were given up as they finished, since the last unit that can be trained on."""
        self.first_version = 0
        """Rollouts with tokens of earlier versions are dropped: the run has fallen back behind those."""
        self._units: dict[int, list[Rollout | None]] = {}
        self._useless_of: dict[int, str] = {}
        """Why finished rollouts cannot be trained on, by their admission numbers."""
        self._oldest_of: dict[int, int] = {}
        """The oldest version in finished rollouts of use, by their admission numbers."""
        self._oldest: dict[int, int] = {}
        """The oldest version in each unit that is complete."""
        self._drops: list[Drop] = []

    def admit(self, index: int) -> None:
        """An episode with this admission number starts."""
        unit = self._units.setdefault(index // self.group_size, [None] * self.group_size)
        if unit[index % self.group_size] is not None:
            raise ValueError(f"rollout {index} is already finished")
        self.running += 1

    def add(self, rollout: Rollout) -> None:
        """An admitted episode has ended."""
        self.running -= 1
        self.accepted += 1
        if reason := unfit(rollout) or self.filters.see(rollout):
            self._useless_of[rollout.index] = reason
        key = rollout.index // self.group_size
        unit = self._units[key]
        unit[rollout.index % self.group_size] = rollout
        if all(unit):
            self._judge(key)

    def take(self, version: int) -> Batch | None:
        """The next batch for the policy `version`, None while not enough is finished. Stale units are dropped."""
        self._drop_stale(version)
        if len(self._oldest) < self.batch_units:
            return None
        ready = [key for key in self._window() if key in self._oldest]
        if len(ready) < self.batch_units:
            return None
        return self._consume(ready[: self.batch_units], version)

    def forget_before(self, version: int) -> None:
        """Drop what has tokens of earlier versions than this, the newest: what is finished now, the rest as it ends."""
        self.first_version = version
        self._drop_stale(version)

    def take_drops(self) -> tuple[Drop, ...]:
        """What was dropped since the last call."""
        drops, self._drops = tuple(self._drops), []
        return drops

    def drain(self, reason: str) -> None:
        """Drop everything that is finished; running episodes are forgotten."""
        for key in list(self._units):
            self._drop_unit(key, reason)
        self.running = 0

    def restore(self, log: Iterable[Rollout], pending: Container[str], accepted: int) -> None:
        """Be as after a run's rollouts so far; for an empty buffer.

        Args:
            log: the finished rollouts in the order of the log; those that are not pending matter to the filters alone.
            pending: ids of those that were neither consumed nor dropped.
            accepted: places in batches that were consumed.
        """
        self.accepted = accepted
        for rollout in log:
            if rollout.id in pending:
                self.admit(rollout.index)
                self.add(rollout)
            elif not unfit(rollout):
                self.filters.see(rollout)
        self.useless.clear()  # What was wrong before may have been mended since.

    @property
    def finished(self) -> int:
        """Finished rollouts that wait to be consumed."""
        return sum(r is not None for unit in self._units.values() for r in unit)

    def _judge(self, key: int) -> None:
        """Give up a complete unit without use: its place is free at once, and not only when it would be consumed."""
        members = [r for r in self._units[key] if r is not None and r.index not in self._useless_of]
        if len(members) < self.min_valid:
            self._drop_unit(key, "group_incomplete")
        elif reason := self.filters.see_group(members):
            self._drop_unit(key, reason)
        else:
            self._oldest_of |= {rollout.index: _oldest(rollout) for rollout in members}
            self._oldest[key] = min(self._oldest_of[rollout.index] for rollout in members)
            self.useless.clear()
            return
        self.useless.update(drop.reason for drop in self._drops[-self.group_size :])

    def _window(self) -> list[int]:
        return sorted(self._units)[: self.window]

    def _drop_stale(self, version: int) -> None:
        for key, oldest in list(self._oldest.items()):
            if oldest < self.first_version:
                self._drop_unit(key, "rolled_back")
            elif version - oldest > self.max_staleness:
                self._drop_unit(key, "stale")

    def _consume(self, keys: Iterable[int], version: int) -> Batch:
        rollouts: list[Rollout] = []
        for key in keys:
            del self._oldest[key]
            for rollout in self._units.pop(key):
                assert rollout is not None
                if reason := self._useless_of.pop(rollout.index, None):
                    self._drops.append(Drop(rollout.id, reason))
                else:
                    rollouts.append(rollout)
        return Batch(tuple(rollouts), tuple(version - self._oldest_of.pop(r.index) for r in rollouts))

    def _drop_unit(self, key: int, reason: str) -> None:
        self._oldest.pop(key, None)
        for rollout in self._units.pop(key):
            if rollout is not None:
                self._oldest_of.pop(rollout.index, None)
                self.accepted -= 1
                self._drops.append(Drop(rollout.id, self._useless_of.pop(rollout.index, reason)))


def unfit(rollout: Rollout) -> str | None:
    """Why a finished rollout can never be trained on, None if it can."""
    if rollout.status is Status.FAILED:
        return f"failed: {rollout.stop_reason}"
    if rollout.reward is None:
        return "unscored"
    if not any(action.versions for action in rollout.actions):
        return "no_actions"
    return None


def _oldest(rollout: Rollout) -> int:
    oldest = rollout.oldest_version
    assert oldest is not None  # Without tokens of its own it is unfit.
    return oldest
