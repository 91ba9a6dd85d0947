"""What generated tasks are composed of: small transformations, each with its words and its Python.

A step's code is an expression of `value`, in nothing but built-ins, and is defined for every value of its kind: what
becomes of nothing, an empty list or text, stands in its words. None computes for long, however large `value` is.
"""

from typing import Literal

from msgspec import Struct

Kind = Literal["numbers", "text", "words", "number", "counts", "truth"]


class Step(Struct, frozen=True):
    """One transformation. `{n}`, a whole number, and `{a}` and `{b}`, letters, stand for what a task fills in."""

    takes: Kind
    gives: Kind
    words: str
    code: str
    n: tuple[int, int] | None = None
    """The least and the largest `{n}`."""

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters it wants: `a`, or `a` and `b`."""
        return tuple(letter for letter in "ab" if f"{{{letter}}}" in self.words)


def steps(takes: Kind, gives: Kind, *found: tuple[str, str] | tuple[str, str, tuple[int, int]]) -> tuple[Step, ...]:
    """Steps from one kind to another: words, code, and the bounds of `{n}` where it occurs."""
    return tuple(Step(takes, gives, *parts) for parts in found)
