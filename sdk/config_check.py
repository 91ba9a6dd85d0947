"""What is wrong with a config, in plain words, all of it at once.

`problems` compares plain data with a struct's own definition: nothing here knows a particular config. It explains;
whether a value is taken is msgspec's decision (`config_io`), so a rule that only msgspec knows is still enforced.
"""

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec.inspect as inspect
from msgspec import Struct

Path = tuple[str, ...]

_ListType = inspect.ListType | inspect.VarTupleType | inspect.TupleType
_SHOWN = 60
"""Characters of a wrong value that a message repeats."""

_NEAR = 0.6
"""Likeness from which on a name may have been meant: `ppo` is not meant for `gspo`."""


class Problem(Struct, frozen=True):
    """One thing to put right."""

    path: Path
    text: str


def problems(struct: type[Struct], data: Any) -> list[Problem]:
    """Everything in `data` that keeps it from being a `struct`."""
    return list(_check(inspect.type_info(struct), data, ()))


def _check(type: inspect.Type, value: Any, path: Path) -> Iterator[Problem]:
    options = type.types if isinstance(type, inspect.UnionType) else (type,)
    if value is None and any(isinstance(t, inspect.NoneType) for t in options):
        return
    structs = [t for t in options if isinstance(t, inspect.StructType)]
    if structs:
        yield from _check_structs(structs, value, path)
        return
    for option in options:
        if isinstance(option, _ListType) and isinstance(value, list) and _length_fits(option, value):
            yield from _check_items(option, value, path)
            return
        if isinstance(option, inspect.DictType) and isinstance(value, dict):
            yield from _check_mapping(option, value, path)
            return
    if not any(_fits(t, value) for t in options):
        choices = [v for t in options if isinstance(t, inspect.LiteralType) for v in t.values]
        yield Problem(path, f"expected {describe(type)}, got {_show(value)}{_did_you_mean(value, choices)}")


def _check_items(type: _ListType, value: list[Any], path: Path) -> Iterator[Problem]:
    for i, item in enumerate(value):
        item_type = type.item_types[i] if isinstance(type, inspect.TupleType) else type.item_type
        yield from _check(item_type, item, (*path[:-1], f"{path[-1]}[{i}]"))


def _check_mapping(type: inspect.DictType, value: dict[Any, Any], path: Path) -> Iterator[Problem]:
    for key, item in value.items():
        if isinstance(key, str):
            yield from _check(type.value_type, item, (*path, key))
        else:
            yield Problem(path, f"the key {_show(key)} is not text; put it in quotes")


def _check_structs(structs: list[inspect.StructType], value: Any, path: Path) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(path, f"expected {_describe_structs(structs)}, got {_show(value)}")
    elif len(structs) == 1 and structs[0].tag is None:
        yield from _check_fields(structs[0], value, path)
    else:
        yield from _check_tagged(structs, value, path)


def _check_tagged(structs: list[inspect.StructType], value: dict[Any, Any], path: Path) -> Iterator[Problem]:
    by_tag = {s.tag: s for s in structs}
    key = structs[0].tag_field or "type"
    tag = value.get(key)
    if key not in value:
        yield Problem((*path, key), f"required, and missing: {_one_of(by_tag)}")
    elif not isinstance(tag, str | int) or tag not in by_tag:
        nearest = _did_you_mean(tag, by_tag)
        yield Problem((*path, key), f"expected {_one_of(by_tag)}, got {_show(tag)}{nearest}")
    else:
        yield from _check_fields(by_tag[tag], {k: v for k, v in value.items() if k != key}, path)


def _check_fields(struct: inspect.StructType, value: dict[Any, Any], path: Path) -> Iterator[Problem]:
    fields = {f.encode_name: f for f in struct.fields}
    for key, item in value.items():
        if key in fields:
            yield from _check(fields[key].type, item, (*path, key))
        elif struct.forbid_unknown_fields:
            known = f"the keys here are {', '.join(fields)}" if fields else "no keys are known here"
            nearest = _did_you_mean(key, fields)
            yield Problem((*path, str(key)), f"unknown key (with the value {_show(item)}){nearest}; {known}")
    for name, field in fields.items():
        if field.required and name not in value:
            yield Problem((*path, name), f"required, and missing: {describe(field.type)}")


def _fits(type: inspect.Type, value: Any) -> bool:
    match type:
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and _within(type, value)
        case inspect.FloatType():
            number = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
            return number and _within(type, value)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.LiteralType():
            return any(v == value and isinstance(v, bool) == isinstance(value, bool) for v in type.values)
        case inspect.VarTupleType() | inspect.ListType() | inspect.TupleType() | inspect.DictType():
            return False  # what has the right shape was looked into before
        case _:
            return True


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _length_fits(type: inspect.Type, value: list[Any]) -> bool:
    return not isinstance(type, inspect.TupleType) or len(value) == len(type.item_types)


def _within(type: inspect.IntType | inspect.FloatType, value: float) -> bool:
    return (
        (type.ge is None or value >= type.ge)
        and (type.gt is None or value > type.gt)
        and (type.le is None or value <= type.le)
        and (type.lt is None or value < type.lt)
    )


def describe(type: inspect.Type) -> str:
    """What belongs there, in words: `a whole number of at least 1`."""
    match type:
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_range(type)}"
        case inspect.FloatType():
            return f"a number{_range(type)}"
        case inspect.StrType():
            return "text"
        case inspect.LiteralType():
            return _one_of(type.values)
        case inspect.VarTupleType() | inspect.ListType():
            return f"a list, each item {describe(type.item_type)}"
        case inspect.TupleType():
            return f"a list of {len(type.item_types)}: {'; '.join(map(describe, type.item_types))}"
        case inspect.DictType():
            return "a mapping of keys to values"
        case inspect.StructType():
            return f"a mapping with the keys {', '.join(f.encode_name for f in type.fields)}"
        case inspect.UnionType(types=types) if _are_kinds(types):
            return _describe_structs(types)
        case inspect.UnionType():
            return ", or ".join(describe(t) for t in type.types)
        case _:
            return "a value"


def _are_kinds(types: Sequence[inspect.Type]) -> TypeGuard[Sequence[inspect.StructType]]:
    return all(isinstance(t, inspect.StructType) and t.tag is not None for t in types)


def _describe_structs(structs: Sequence[inspect.StructType]) -> str:
    if structs[0].tag is None:
        return describe(structs[0])
    return f"a mapping with `{structs[0].tag_field}: ` {_one_of(s.tag for s in structs)}"


def _range(type: inspect.IntType | inspect.FloatType) -> str:
    low, high = (type.ge if type.gt is None else type.gt), (type.le if type.lt is None else type.lt)
    above = "" if low is None else f"above {low:g}" if type.gt is not None else f"of at least {low:g}"
    below = "" if high is None else f"below {high:g}" if type.lt is not None else f"of at most {high:g}"
    if type.ge is not None and type.le is not None:
        return f" from {low:g} to {high:g}"
    return "".join(f" {part}" for part in (above, "and" if above and below else "", below) if part)


def _one_of(values: Iterable[Any]) -> str:
    return " or ".join(_show(v) for v in values)


def _did_you_mean(wrong: Any, names: Iterable[Any]) -> str:
    near = max(((_likeness(str(wrong), str(n)), str(n)) for n in names), key=lambda pair: pair[0], default=(0.0, ""))
    return f", did you mean `{near[1]}`?" if near[0] >= _NEAR else ""


def _likeness(wrong: str, name: str) -> float:
    """Of two names, or of one and a word of the other: `bach` is meant for `batch_rollouts`."""
    return max(difflib.SequenceMatcher(None, wrong, part).ratio() for part in (name, *name.split("_")))


def _show(value: Any) -> str:
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def describe_all(found: Iterable[Problem], lines: Mapping[Path, int], overridden: Iterable[Path]) -> list[str]:
    """One line a problem: where it stands, then what it is.

    Args:
        found: the problems.
        lines: the line in the file of each key.
        overridden: the paths that came from the command line.
    """
    from_command_line = set(overridden)
    return [f"{'.'.join(p.path)}{_origin(p.path, lines, from_command_line)}: {p.text}" for p in found]


def _origin(path: Path, lines: Mapping[Path, int], overridden: set[Path]) -> str:
    if any(path[: len(o)] == o for o in overridden):
        return " (from --set)"
    return f" (line {lines[path]})" if path in lines else ""
