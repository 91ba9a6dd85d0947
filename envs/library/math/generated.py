"""Problems in words, made without end: things come and go, step by step, and are counted in the end.

What always holds:

- A problem depends on nothing but the random numbers it is drawn with.
- Which split a problem belongs to is decided by its calculation, and by nothing else: neither names nor wording, nor a
  seed or level, can make one calculation appear in both.
- Every count on the way is a whole number from 1 to `MOST`.
"""

from collections.abc import Iterator, Sequence
from random import Random

from moonmill.envs.library.math.files import Problem
from moonmill.envs.library.splits import split_of

MAX_LEVEL = 6
MOST = 5000
_NAMES = ("Ada", "Ben", "Chloe", "Dev", "Elif", "Femi", "Grace", "Hugo", "Ines", "Jun", "Kofi", "Lena", "Mara", "Nils")
_THINGS = ("marbles", "stickers", "apples", "coins", "cards", "shells", "pencils", "stamps", "beads", "books")


def generated_problems(rng: Random, split: str, levels: Sequence[int]) -> Iterator[Problem]:
    """Problems of a split; a level is a number of steps."""
    while True:
        level = rng.choice(levels)
        calculation, text, count = _draw(rng, level)
        if split_of(calculation) == split:
            yield Problem(text, str(count), "", str(level))


def _draw(rng: Random, level: int) -> tuple[str, str, int]:
    """A calculation, the same in words, and what it comes to."""
    name, things, count = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(3, 60)
    calculation, sentences = str(count), [f"{name} has {count} {things}."]
    for _ in range(level):
        sign, words, count = _step(rng, name, things, count)
        calculation += sign
        sentences.append(words)
    sentences.append(f"How many {things} does {name} have now?")
    return calculation, " ".join(sentences), count


def _step(rng: Random, name: str, things: str, count: int) -> tuple[str, str, int]:
    """What happens next: in signs, in words, and how many there are then."""
    while True:
        n, each = rng.randint(2, 40), rng.randint(2, 12)
        share, times = rng.randint(2, 6), rng.randint(2, 4)
        boxes = rng.randint(2, 9)
        sign, words, after = rng.choice(
            (
                (f"+{n}", f"Then {name} buys {n} more.", count + n),
                (f"-{n}", f"Then {name} gives {n} of them away.", count - n),
                (
                    f"+{boxes}*{each}",
                    f"Then {name} gets {boxes} boxes with {each} {things} in each.",
                    count + boxes * each,
                ),
                (f"*{times}", f"Then a friend brings so many that {name} has {times} times as many.", count * times),
                (
                    f"/{share}",
                    f"Then {name} shares them equally among {share} people, and keeps one share.",
                    count / share,
                ),
                (f"*{share - 1}/{share}", f"Then {name} loses 1/{share} of them.", count * (share - 1) / share),
            )
        )
        if after == int(after) and 1 <= after <= MOST:
            return sign, words, int(after)
