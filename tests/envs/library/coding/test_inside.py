"""How values travel between a submission and its grader."""

import math
import subprocess
import sys
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonmill.envs.library.coding import inside
from moonmill.envs.library.coding.inside import LONGEST_ITERATOR, NotPlainError, decode, encode

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=8)
    | st.complex_numbers(allow_nan=False)
)
HASHABLE = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=8
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(HASHABLE, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=12,
)


def types_of(value: Any) -> Any:
    """The types in a value, in its shape; where there is no order, those of it all."""
    if isinstance(value, list | tuple):
        return type(value), [types_of(item) for item in value]
    if isinstance(value, dict):
        return dict, [(types_of(key), types_of(item)) for key, item in value.items()]
    return type(value)


@given(VALUES)
def test_a_value_comes_out_as_it_went_in_types_and_order_included(value: Any) -> None:
    text = encode(value)
    assert text.isascii()
    assert "\n" not in text
    assert decode(text) == value
    assert types_of(decode(text)) == types_of(value)


@given(VALUES, VALUES)
def test_encoded_as_equal_two_values_are_the_same_exactly_if_they_are_equal(one: Any, other: Any) -> None:
    assert (encode(one, as_equal=True) == encode(other, as_equal=True)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        (0, False),
        (1.0, 1),
        (-0.0, 0),
        (1e300, int(1e300)),
        (2**60 * 1.0, 2**60),
        ({1: 2, 3: 4}, {3: 4, 1: 2}),
    ],
)
def test_what_python_calls_equal_is_written_in_the_same_way(one: Any, other: Any) -> None:
    assert one == other
    assert encode([one], as_equal=True) == encode([other], as_equal=True)
    assert encode([one]) != encode([other])


@pytest.mark.parametrize(
    ("one", "other"), [([1], (1,)), ("1", 1), (b"a", "a"), (None, False), ([], {}), (set(), {}), (0.1 + 0.2, 0.3)]
)
def test_what_python_calls_different_is_written_differently(one: Any, other: Any) -> None:
    assert encode(one, as_equal=True) != encode(other, as_equal=True)


def test_numbers_of_any_size_travel() -> None:
    for number in (2**53 - 1, 2**53, -(2**53), 10**5000, math.inf, -math.inf, 5e-324):
        assert decode(encode(number)) == number
    assert math.isnan(decode(encode(math.nan)))


def test_ranges_and_iterators_travel() -> None:
    assert decode(encode(range(3, 9, 2))) == range(3, 9, 2)
    assert tuple(decode(encode(x * x for x in range(4)))) == (0, 1, 4, 9)
    assert list(decode(encode(map(str, [1, 2])))) == ["1", "2"]
    forever = iter(int, 1)
    assert len(list(decode(encode(forever)))) == LONGEST_ITERATOR


def test_a_subclass_is_taken_for_its_class() -> None:
    class Sly(str):
        def __str__(self) -> str:
            return "other"

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    class Number(int):
        def __int__(self) -> int:
            return 7

    assert encode(Sly("mine")) == '"mine"'
    assert encode(Number(3)) == "3"
    assert decode(encode(Counter("aab"))) == {"a": 2, "b": 1}
    assert decode(encode(OrderedDict(x=1))) == {"x": 1}
    assert decode(encode(namedtuple("P", "x y")(1, 2))) == (1, 2)


@pytest.mark.parametrize("value", [object(), len, type, {1: object()}, [lambda: 1], {}.keys(), Path()])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(NotPlainError, match="is no plain data"):
        encode(value)


def test_what_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        encode(loop)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[1", '{"list": [1]}', '{"tuple": 1}', '{"dict": [[[], 1]]}', '{"int": "x"}', '{"bytes": 3}'),
        *('{"set": [[]]}', '{"range": ["a"]}', '{"tuple": [], "set": []}', "[" * 100_000, "1" * 10_000, '{"a": 1} 2'),
    ],
)
def test_what_is_not_encoded_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, RecursionError)):
        decode(text)


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_program_can_be_read_by_every_python_that_may_be_in_a_sandbox(version: str) -> None:
    import ast

    source = Path(inside.__file__).read_text()
    ast.parse(source, feature_version=tuple(map(int, version.split("."))))  # type: ignore[arg-type]


def test_the_program_takes_nothing_from_us() -> None:
    code = "import sys; exec(open(sys.argv[1]).read().partition('if __name__')[0]); print('typing' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, inside.__file__], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
