"""Problems: files, one job or two, and what is wanted in the end."""

from collections.abc import Iterator, Sequence
from random import Random

from msgspec import Struct

from moonmill.envs.library.splits import split_of
from moonmill.envs.library.terminal.files import State, make_files
from moonmill.envs.library.terminal.jobs import FAMILIES, Family, Fields, fill
from moonmill.types import Task

MAX_LEVEL = 3
_TRIES = 2
"""Folders that a script is tried out on."""


class Run(Struct, frozen=True):
    """A trial of a script that the model has written."""

    script: str
    files: dict[str, str]
    """What is in the folder that it is given."""
    printed: str


class Wanted(Struct, frozen=True):
    """What is to be true in the end: the files, all of them and no others, and what scripts print."""

    files: State
    runs: tuple[Run, ...] = ()


def generated_tasks(rng: Random, split: str, levels: Sequence[int], families: Sequence[str]) -> Iterator[Task]:
    """Tasks without end. The split a task belongs to is a hash of its words: whatever the files, they are in one."""
    while True:
        level = rng.choice(levels)
        count = 2 if level == MAX_LEVEL else 1
        chosen = sorted(rng.sample(families, count), key=_place)
        files = state = make_files(rng, nested=level > 1)
        said: list[str] = []
        for name in chosen:
            family = FAMILIES[name]
            fields = family.draw(rng, state)
            said.append(fill(family.words, fields))
            state = family.done(state, fields)
        prompt = said[0] if count == 1 else "\n".join(f"{number}. {words}" for number, words in enumerate(said, 1))
        if split_of(prompt) == split:
            info = {"files": _contents(files), "families": chosen}
            yield Task(prompt, Wanted(state, _runs(rng, family, fields)), level=str(level), info=info)


def _place(family: str) -> int:
    """A job that is about files of one kind alone comes first, while they are there. A script comes last: its text is
    the model's own, so nothing that follows could be about it."""
    return {"edit": 0, "script": 2}.get(family, 1)


def _runs(rng: Random, family: Family, fields: Fields) -> tuple[Run, ...]:
    """Trials of the script that a job is to have written, if it is; scripts come last."""
    if family.output is None:
        return ()
    folders = [make_files(rng, nested=True) for _ in range(_TRIES)]
    return tuple(Run(fields["script"], _contents(folder), family.output(folder, fields)) for folder in folders)


def _contents(files: State) -> dict[str, str]:
    return {path: entry.content or "" for path, entry in files.items()}
