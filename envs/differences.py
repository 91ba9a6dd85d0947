"""Where two records of the same thing part: of episodes, of tasks."""

from collections.abc import Sequence
from itertools import zip_longest

from msgspec import Struct

_BEFORE, _SHOWN = 40, 100
"""Characters of a value that are shown: so many of them before what differs."""

Event = tuple[str, str]
"""Where, and what was seen there, as JSON."""


class Difference(Struct, frozen=True):
    """The first place at which two lists of events differ."""

    where: str
    first: str
    second: str


def first_difference(first: Sequence[Event], second: Sequence[Event]) -> Difference | None:
    """None where the two are equal. Of long values the part that differs is shown."""
    for one, other in zip_longest(first, second, fillvalue=("", "nothing")):
        if one != other:
            at = next((i for i, (a, b) in enumerate(zip(one[1], other[1], strict=False)) if a != b), 0)
            start = max(0, at - _BEFORE)
            return Difference(one[0] or other[0], _from(one[1], start), _from(other[1], start))
    return None


def _from(text: str, start: int) -> str:
    shown = text[start : start + _SHOWN]
    return f"{'…' * bool(start)}{shown}{'…' * (start + _SHOWN < len(text))}"
