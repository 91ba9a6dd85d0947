"""Programs: a few steps in a row, and what such a function does.

What a program does, its behaviour, is what it makes of the probes. Two programs with the same behaviour are the same
task, however they are written and worded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from moonmill.envs.library.coding.inputs import LETTERS, probes
from moonmill.envs.library.coding.inside import encode
from moonmill.envs.library.coding.number_steps import NUMBER_STEPS
from moonmill.envs.library.coding.steps import Kind, Step
from moonmill.envs.library.coding.text_steps import TEXT_STEPS

STEPS: tuple[Step, ...] = (*NUMBER_STEPS, *TEXT_STEPS)
ENTRY_POINT = "solve"
LEAST_DIFFERENT = 5
"""Probes for which a step must make a difference."""
STARTS: tuple[Kind, ...] = ("numbers", "text", "words", "number", "counts")
"""What a function may be given."""


class Filled(Struct, frozen=True):
    """A step with its number and letters."""

    step: Step
    n: int = 0
    a: str = ""
    b: str = ""

    @property
    def words(self) -> str:
        return self.step.words.format(n=self.n, a=self.a, b=self.b)

    @property
    def code(self) -> str:
        return self.step.code.format(n=self.n, a=self.a, b=self.b)


class Program(Struct, frozen=True):
    """At least one step; each takes what the one before it gives."""

    steps: tuple[Filled, ...]

    @property
    def takes(self) -> Kind:
        return self.steps[0].step.takes

    @property
    def gives(self) -> Kind:
        return self.steps[-1].step.gives

    @property
    def source(self) -> str:
        """A Python function that does it."""
        first, *others = (filled.code for filled in self.steps)
        lines = [f"value = {self.takes}", f"value = {first}", *(f"value = {code}" for code in others)]
        return f"def {ENTRY_POINT}({self.takes}):\n" + "".join(f"    {line}\n" for line in (*lines, "return value"))

    def results(self, inputs: Iterable[Any]) -> tuple[Any, ...]:
        """What it makes of each input."""
        scope: dict[str, Any] = {}
        exec(self.source, scope)
        return tuple(map(scope[ENTRY_POINT], inputs))

    @property
    def behaviour(self) -> bytes:
        """A digest of what it does."""
        return _digest(self.takes, map(as_equal, self.results(probes(self.takes))))

    def shorter(self) -> Iterator["Program"]:
        """The program without one of its steps, for each that may be missing."""
        for index in range(len(self.steps)):
            rest = self.steps[:index] + self.steps[index + 1 :]
            if rest and all(a.step.gives == b.step.takes for a, b in pairwise(rest)):
                yield Program(rest)

    def neighbours(self) -> Iterator["Program"]:
        """The program with one of its numbers one less or one more: mistakes that are easily made."""
        for index, filled in enumerate(self.steps):
            if filled.step.n is not None:
                for n in (filled.n - 1, filled.n + 1):
                    if n > 0 or filled.step.n[0] <= 0:
                        yield Program((*self.steps[:index], replace(filled, n=n), *self.steps[index + 1 :]))


def as_equal(value: Any) -> str:
    """`value` encoded so that what is equal is written in the same way."""
    return encode(value, as_equal=True)


def draw_program(rng: Random, length: int, wanted: Callable[[bytes], bool]) -> Program:
    """A program of `length` steps, each of which makes a difference.

    Args:
        rng: draws it.
        length: the number of steps.
        wanted: whether a behaviour will do.
    """
    while True:
        program = _walk(rng, length)
        if program is not None and _is_sound(program, wanted):
            return program


def _walk(rng: Random, length: int) -> Program | None:
    kind = rng.choice(STARTS)
    steps: list[Filled] = []
    for _ in range(length):
        if kind not in _BY_KIND:
            return None  # A truth is the end.
        steps.append(_fill(rng.choice(_BY_KIND[kind]), rng))
        kind = steps[-1].step.gives
    return Program(tuple(steps))


def _fill(step: Step, rng: Random) -> Filled:
    n = rng.randint(*step.n) if step.n is not None else 0
    a = rng.choice(LETTERS) if "a" in step.letters else ""
    b = rng.choice([letter for letter in LETTERS if letter != a]) if "b" in step.letters else ""
    return Filled(step, n, a, b)


def _is_sound(program: Program, wanted: Callable[[bytes], bool]) -> bool:
    done = tuple(map(as_equal, program.results(probes(program.takes))))
    behaviour = _digest(program.takes, done)
    if not wanted(behaviour) or len(set(done)) == 1 or behaviour == _of_nothing(program.takes):
        return False
    return all(_differs(done, shorter) for shorter in program.shorter() if shorter.takes == program.takes)


def _differs(done: Sequence[str], other: Program) -> bool:
    """Whether another program does something else often enough to be told apart."""
    others = map(as_equal, other.results(probes(other.takes)))
    return sum(one != two for one, two in zip(done, others, strict=True)) >= LEAST_DIFFERENT


@cache
def _of_nothing(takes: Kind) -> bytes:
    """The behaviour of what gives back what it is given."""
    return _digest(takes, map(as_equal, probes(takes)))


def _digest(takes: Kind, outputs: Iterable[str]) -> bytes:
    return blake2b("\n".join((takes, *outputs)).encode(), digest_size=16).digest()


_BY_KIND: dict[str, tuple[Step, ...]] = {
    kind: tuple(step for step in STEPS if step.takes == kind) for kind in dict.fromkeys(step.takes for step in STEPS)
}
