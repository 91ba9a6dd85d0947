"""Whose tokens are cached in which slot. Pure bookkeeping: no tensors, no clock.

What always holds: a slot belongs to one version of the weights at a time, its first `length` tokens are those whose
keys and values are in the cache, and they were computed by that version. A slot keeps them after its request has ended;
the next turn of the same conversation finds them.
"""

from collections.abc import Sequence
from typing import NamedTuple

_WORTH_COPYING = 16
"""Shared tokens below which computing them again costs less than copying them from another slot."""


class Slot:
    """One place in the cache. `tokens` may run ahead of `length`: the rest is still to be computed."""

    __slots__ = ("busy", "index", "last_used", "length", "tokens", "version")

    def __init__(self, index: int) -> None:
        self.index = index
        self.version = ""
        self.tokens: list[int] = []
        self.length = 0
        self.busy = False
        self.last_used = 0


class Placement(NamedTuple):
    """Where a request goes: `cached` of its tokens need no computing, once they are copied from `source`, if any."""

    slot: Slot
    cached: int
    source: Slot | None


class SlotTable:
    """All slots of the cache."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self._uses = 0

    def place(self, version: str, prompt: list[int], *, reuse: bool = True) -> Placement | None:
        """Take a slot for a request; None where all are busy. `prompt` becomes the slot's tokens, and grows with them.

        The slot with the longest common prefix is continued, or, where that belongs to another request or holds much
        more of another conversation, the least useful free slot gets a copy of the prefix. Without `reuse`
        nothing that is cached is taken.
        """
        free = [slot for slot in self.slots if not slot.busy]
        if not free:
            return None
        # The last token is always computed: its output is what is sampled from.
        limit = len(prompt) - 1 if reuse else 0
        best, shared = None, 0
        for slot in self.slots:
            if slot.version == version and slot.length > shared:
                common = common_prefix(prompt, slot.tokens, min(limit, slot.length))
                if common > shared:
                    best, shared = slot, common
        if best is not None and not best.busy and 2 * shared >= best.length:
            return self._take(best, version, prompt, shared, None)
        target = min(free, key=lambda slot: (slot.length > 0, slot.version == version, slot.last_used))
        if best is None or shared < _WORTH_COPYING:
            return self._take(target, version, prompt, 0, None)
        return self._take(target, version, prompt, shared, None if target is best else best)

    def release(self, slot: Slot) -> None:
        """The slot's request has ended; what is cached stays."""
        slot.busy = False
        del slot.tokens[slot.length :]

    def forget(self, version: str) -> None:
        """The version is gone, and what it computed with it."""
        for slot in self.slots:
            if slot.version == version:
                slot.version, slot.tokens, slot.length = "", [], 0

    def clear(self) -> None:
        """What is cached can no longer be trusted."""
        for slot in self.slots:
            slot.version, slot.tokens, slot.length = "", [], 0

    def _take(self, slot: Slot, version: str, prompt: list[int], cached: int, source: Slot | None) -> Placement:
        self._uses += 1
        slot.version, slot.tokens, slot.length = version, prompt, cached
        slot.busy, slot.last_used = True, self._uses
        return Placement(slot, cached, source)


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """How many of the first `limit` tokens of `a` and `b` agree before the first that does not."""
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
