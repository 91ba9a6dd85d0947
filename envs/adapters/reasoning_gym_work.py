"""What reasoning-gym does, for a worker: draws problems and scores answers.

The library is imported here and nowhere else, so that what it does to a process (global random numbers, slow
generators, scorers that evaluate what they are given) is done to one that can be killed. What always holds:

- An entry depends on nothing but source, seed and index: whoever scores it may draw it anew.
- No answer runs as code. Scorers give `eval` and sympy's `parse_expr` what the model wrote: here these read numbers,
  literals and arithmetic, and the latter symbols and the functions in `_FUNCTIONS`.
"""

import ast
import random
import sys
from functools import lru_cache
from typing import Any

import msgspec
import numpy
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum, create_dataset
from sympy.parsing import sympy_parser

from moonmill.envs.adapters.reasoning_gym import Source
from moonmill.seeding import derive_seed, one_in

BLOCK = 32
"""Entries that a data set is made for: some make all of theirs at once, and some read a file first."""
EVAL_SHARE = 4
"""One question in so many belongs to `eval`."""
_TRIES = 400
"""Entries that are looked at for one that belongs to the split."""
_SEEDS = 2**31
"""What numpy takes, with room for an index."""
_FUNCTIONS = {"Symbol", "Integer", "Float", "Rational", "sin", "cos", "tan", "exp", "log", "ln", "sqrt", "Abs"}
_ARITHMETIC = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop, ast.expr_context)
_LITERALS = (*_ARITHMETIC, ast.List, ast.Tuple, ast.Set, ast.Dict)
_SYMBOLS = (*_ARITHMETIC, ast.Name, ast.Call)


def names() -> list[str]:
    """The data sets there are."""
    return sorted(DATASETS)


def problem_of(source: str) -> str | None:
    """What is wrong with a source, a `Source` in JSON as everywhere here; None if nothing is."""
    wanted = msgspec.json.decode(source, type=Source)
    fields = set(DATASETS[wanted.name][1].__dataclass_fields__) - {"seed", "size"}
    if unknown := wanted.config.keys() - fields:
        return f"config has {', '.join(sorted(unknown))}, but can have: {', '.join(sorted(fields))}"
    if wanted.level is not None:
        levels = _levels(wanted.name)
        if not 0 <= wanted.level < levels:
            return f"it has {f'the levels 0 to {levels - 1}' if levels else 'no levels: leave them out'}"
    try:
        _dataset(source, 0)
    except Exception as e:
        return f"config {wanted.config} cannot be: {type(e).__name__}: {e}"
    return None


def draw(source: str, seed: int, first: int, split: str) -> dict[str, Any] | None:
    """The next problem of a split, from index `first` on: index, question and answer. None if none is near.

    What belongs to the split is decided by the question alone. A problem whose own answer is not worth 1 is left out.
    """
    for index in range(first, first + _TRIES):
        entry = _entry(source, seed, index)
        if one_in(EVAL_SHARE, entry["question"]) != (split == "eval"):
            continue
        answer = entry["answer"]
        if answer is None or (isinstance(answer, str) and score(source, seed, index, answer) == 1.0):
            return {"index": index, "question": entry["question"], "answer": answer}
    return None


def score(source: str, seed: int, index: int, answer: str) -> float:
    """From 0 to 1. What makes the library's scorer raise, or give anything else, is no answer; nor is an empty one."""
    if not answer.strip():
        return 0.0
    entry = _entry(source, seed, index)
    try:
        given = float(_dataset_of(source, seed, index).score_answer(answer.strip(), entry))
    except MemoryError:
        raise
    except Exception:
        return 0.0
    return given if 0.0 <= given <= 1.0 else 0.0


@lru_cache(maxsize=256)
def _entry(source: str, seed: int, index: int) -> dict[str, Any]:
    dataset = _dataset_of(source, seed, index)
    _seed_globals(derive_seed(seed, index) % _SEEDS)
    entry: dict[str, Any] = dataset[index % BLOCK]
    return entry


def _dataset_of(source: str, seed: int, index: int) -> Any:
    return _dataset(source, derive_seed(seed, "block", index // BLOCK) % _SEEDS)


@lru_cache(maxsize=32)
def _dataset(source: str, seed: int) -> Any:
    wanted = msgspec.json.decode(source, type=Source)
    config: dict[str, Any] = {}
    if wanted.level is not None:
        curriculum = create_curriculum(wanted.name)
        curriculum.set_global_level(wanted.level)
        config = dict(vars(curriculum.generate_configuration()))
    _seed_globals(seed)
    dataset = create_dataset(wanted.name, **{**config, **wanted.config, "seed": seed, "size": BLOCK})
    vars(sys.modules[type(dataset).__module__])["eval"] = _eval_literal
    return dataset


def _levels(name: str) -> int:
    """How many levels its curriculum has."""
    if name not in CURRICULA:
        return 0
    return max((len(attribute.levels) for attribute in create_curriculum(name).attributes.values()), default=0)


def _seed_globals(seed: int) -> None:
    """A generator that draws from the process's random numbers gives the same again."""
    random.seed(seed)
    numpy.random.seed(seed)


def _eval_literal(code: str, *_: Any) -> Any:
    """In place of `eval`, in the module of a data set."""
    _check(code, _LITERALS)
    return eval(code.strip(), {"__builtins__": {}})


def _eval_symbols(code: str, local_dict: Any, global_dict: Any) -> Any:
    """In place of sympy's own, which runs whatever its parser has made of a text."""
    _check(code, _SYMBOLS)
    return _sympys_eval(code, local_dict, global_dict)


def _check(code: str, nodes: tuple[type[ast.AST], ...]) -> None:
    for node in ast.walk(ast.parse(code.strip(), mode="eval")):
        is_other_call = isinstance(node, ast.Call) and getattr(node.func, "id", None) not in _FUNCTIONS
        if is_other_call or not isinstance(node, nodes):
            raise ValueError(f"{code:.100} has more in it than arithmetic and the functions known here")


_sympys_eval = sympy_parser.eval_expr
sympy_parser.eval_expr = _eval_symbols
