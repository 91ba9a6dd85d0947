"""Inputs for generated functions: drawn by a random number generator, or always the same ones, the probes.

Numbers, letters and words come from small ranges, so that what a function distinguishes does occur.
"""

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from moonmill.envs.library.coding.steps import Kind
from moonmill.seeding import derive_seed

LETTERS = "aeiorstnl"
WORDS = (
    *("a", "io", "I", "ant", "bee", "eel", "owl", "sun", "tea", "Oslo", "lion", "moon", "noon", "Nile", "Rain", "salt"),
    *("seen", "tail", "tree", "area", "ease", "apple", "level", "linen", "noise", "onset", "river", "rotor", "stats"),
    *("stone", "tiles", "toast"),
)
PROBES = 80


def draw(kind: Kind, rng: Random) -> Any:
    """An input of a kind."""
    return _DRAWN[kind](rng)


@cache
def probes(kind: Kind) -> tuple[Any, ...]:
    """The inputs that tell two functions apart; the same on every machine and in every version."""
    rng = Random(derive_seed(0, "probes", kind))
    return (*_SMALLEST[kind], *(draw(kind, rng) for _ in range(PROBES)))


def smallest(kind: Kind, rng: Random) -> Any:
    """An input at the edge: empty, or zero, or hardly more."""
    return rng.choice(_SMALLEST[kind])


def _numbers(rng: Random) -> list[int]:
    found = [rng.randint(-9, 20) for _ in range(rng.randint(2, 8))]
    if rng.random() < 0.4:  # Repetitions, which are rare else.
        found.append(rng.choice(found))
    if rng.random() < 0.1:
        found.sort()
    if rng.random() < 0.1:
        found += found[::-1]
    return found


def _text(rng: Random) -> str:
    if rng.random() < 0.15:
        half = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 4)))
        return half + half[::-1][rng.randint(0, 1) :]
    parts = [rng.choice(WORDS) if rng.random() < 0.8 else str(rng.randint(0, 99)) for _ in range(rng.randint(1, 4))]
    return " ".join(parts)


def _words(rng: Random) -> list[str]:
    found = [rng.choice(WORDS) for _ in range(rng.randint(2, 6))]
    if rng.random() < 0.5:
        found.append(rng.choice(found))
    return found


def _number(rng: Random) -> int:
    if rng.random() < 0.15:
        half = str(rng.randint(1, 99))
        return int(half + half[::-1])
    return rng.randint(-999, 9999) if rng.random() < 0.5 else rng.randint(-20, 99)


def _counts(rng: Random) -> dict[str, int]:
    return {rng.choice(WORDS): rng.randint(-3, 12) for _ in range(rng.randint(2, 6))}


_DRAWN: dict[Kind, Callable[[Random], Any]] = {
    "numbers": _numbers,
    "text": _text,
    "words": _words,
    "number": _number,
    "counts": _counts,
}
_SMALLEST: dict[Kind, tuple[Any, ...]] = {
    "numbers": ([], [0], [7], [-2], [3, 3]),
    "text": ("", "a", "S", "7", " "),
    "words": ([], ["a"], ["level"], ["tea", "tea"]),
    "number": (0, 1, -1, 10),
    "counts": ({}, {"a": 0}, {"tree": 5}),
}
