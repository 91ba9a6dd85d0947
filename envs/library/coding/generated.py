"""Generated tasks: a function to be written, told in words and by examples; the tests are held back.

What always holds:

- A task depends on nothing but the random numbers it is drawn with, on any machine.
- Which split a task belongs to is decided by what its function does, and by nothing else: no seed, level, wording or
  order of steps can make one function appear in both.
- No step can be left out. The tests tell the function from those that lack a step or have a number that is one off,
  where drawn inputs can, and none of the tests is shown.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from moonmill.envs.library.coding.grading import CallTests
from moonmill.envs.library.coding.inputs import draw, probes, smallest
from moonmill.envs.library.coding.inside import encode
from moonmill.envs.library.coding.programs import ENTRY_POINT, Program, as_equal, draw_program
from moonmill.envs.library.coding.steps import Kind
from moonmill.types import Task

MAX_LEVEL = 4
EVAL_SHARE = 8
"""One function in so many belongs to `eval`."""
SHOWN = 3
HIDDEN = 10
LONGEST_SHOWN = 120
"""Characters of an example."""
MOST_ALIKE = 0.6
"""Of the tests, at most this share wants the same result: a function that always returns it is worth no more."""
DRAWN, EDGES = 60, 2
"""Inputs that are drawn for a task, and at the edge."""
_IN_WORDS: dict[Kind, str] = {
    "numbers": "a list of whole numbers",
    "text": "a text (str)",
    "words": "a list of texts (str)",
    "number": "a whole number",
    "counts": "a dict from texts to whole numbers",
    "truth": "True or False",
}


def generated_tasks(rng: Random, split: str, levels: Sequence[int]) -> Iterator[Task]:
    """Tasks of a split, without end; a level is a number of steps."""
    while True:
        level, task = rng.choice(levels), None
        while task is None:
            program = draw_program(rng, level, lambda behaviour: split_of(behaviour) == split)
            task = make_task(program, rng)
        yield task


def split_of(behaviour: bytes) -> str:
    """The split that a function belongs to."""
    return "eval" if behaviour[0] % EVAL_SHARE == 0 else "train"


def make_task(program: Program, rng: Random) -> Task | None:
    """A task of a program; None where the inputs that were drawn show too little of it."""
    pool = _pool(program, rng)
    shown = [i for i in _varied(pool) if len(pool[i].example) <= LONGEST_SHOWN][:SHOWN]
    shown_inputs = {pool[i].key for i in shown}
    spare = [case for case in _cases(program, probes(program.takes)) if case.key not in shown_inputs]
    hidden = _telling(program, [case for i, case in enumerate(pool) if i not in shown], spare)
    most = max(Counter(case.wanted for case in hidden).values())
    if len(shown) < SHOWN or len(hidden) < HIDDEN or most > MOST_ALIKE * len(hidden):
        return None
    tests = CallTests(
        entry_point=ENTRY_POINT,
        calls=tuple(encode([[case.given], {}]) for case in hidden),
        wanted=tuple(case.wanted for case in hidden),
        solution=program.source,
    )
    return Task(_statement(program, [pool[i] for i in shown]), tests, level=str(len(program.steps)))


class _Case(Struct, frozen=True):
    """An input and what is wanted of it."""

    given: Any
    result: Any
    wanted: str

    @property
    def key(self) -> str:
        return encode(self.given)

    @property
    def example(self) -> str:
        return f"{ENTRY_POINT}({self.given!r}) == {self.result!r}"


def _pool(program: Program, rng: Random) -> list[_Case]:
    """Different cases, those at the edge at the end."""
    kind = program.takes
    drawn = [draw(kind, rng) for _ in range(DRAWN)] + [smallest(kind, rng) for _ in range(EDGES)]
    return _cases(program, {encode(value): value for value in drawn}.values())


def _cases(program: Program, inputs: Iterable[Any]) -> list[_Case]:
    inputs = [*inputs]
    return [_Case(*both, as_equal(both[1])) for both in zip(inputs, program.results(inputs), strict=True)]


def _varied(pool: Sequence[_Case]) -> list[int]:
    """Positions in the pool: different results first, then those that occur a second time, and so on."""
    seen: Counter[str] = Counter()
    ranked = []
    for index, case in enumerate(pool):
        ranked.append((seen[case.wanted], index))
        seen[case.wanted] += 1
    return [index for _, index in sorted(ranked)]


def _telling(program: Program, pool: Sequence[_Case], spare: Sequence[_Case]) -> list[_Case]:
    """The tests: one at the edge, those that tell the program from its shorter and neighbouring ones, varied ones.

    Args:
        program: what is tested.
        pool: what they are taken from.
        spare: what they are taken from where the pool does not tell two programs apart.
    """
    chosen = {pool[-1].key: pool[-1]}
    for other in (*program.shorter(), *program.neighbours()):
        if other.takes == program.takes:
            telling = _differing(other, pool) or _differing(other, spare)
            if telling and chosen.keys().isdisjoint(case.key for case in telling):
                chosen[telling[0].key] = telling[0]
    for index in _varied(pool):
        if len(chosen) >= HIDDEN:
            break
        chosen.setdefault(pool[index].key, pool[index])
    return [*chosen.values()]


def _differing(other: Program, cases: Sequence[_Case]) -> list[_Case]:
    """Those of which another program makes something else."""
    results = other.results(case.given for case in cases)
    return [case for case, result in zip(cases, results, strict=True) if as_equal(result) != case.wanted]


def _statement(program: Program, examples: Sequence[_Case]) -> str:
    takes, gives = _IN_WORDS[program.takes], _IN_WORDS[program.gives]
    steps = [filled.words for filled in program.steps]
    if len(steps) == 1:
        told = f"What it does: {steps[0]}."
    else:
        told = "What it does, in this order:\n" + "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    shown = "\n".join(case.example for case in examples)
    return (
        f"Write a Python function `{ENTRY_POINT}({program.takes})`. It takes {takes} and returns {gives}.\n"
        f"{told}\n\nExamples:\n{shown}"
    )
