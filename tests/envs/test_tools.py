"""`@tool`: from a method to what the model is told, and from what the model says to arguments."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from moonmill.envs import tool
from moonmill.envs.tools import Tool, ToolArgumentsError, collect_tools
from moonmill.errors import ToolDefinitionError


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(Struct):
    x: int
    y: int = 0


@dataclasses.dataclass
class Box:
    corner: Point
    labels: list[str] = dataclasses.field(default_factory=list)


class Tree(Struct):
    value: int
    children: list["Tree"] = []


def built(method: Callable[..., Any], **options: Any) -> Tool:
    """The tool that a class with this method has."""
    [only] = collect_tools(type("Env", (), {"method": tool(**options)(method) if options else tool(method)})).values()
    return only


def schema_of(annotation: Any) -> dict[str, Any]:
    def method(self, value):  # type: ignore[no-untyped-def]
        pass

    method.__annotations__ = {"value": annotation}
    parameters = built(method).spec.parameters
    value: dict[str, Any] = parameters["properties"]["value"]
    return value


# What the model is told


def test_name_description_and_parameters_come_from_the_method() -> None:
    def convert(self: Any, value: float, to: Literal["mi", "km"] = "mi") -> str:  # noqa: D417
        """Convert a length.

        Into another unit, that is.

        Args:
            value: the length
                in the other unit
            to (str): the unit wanted

        Returns:
            the length
        """
        return ""

    spec = collect_tools(type("Env", (), {"convert": tool(convert)}))["convert"].spec
    assert (spec.name, spec.description) == ("convert", "Convert a length.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "value": {"type": "number", "description": "the length in the other unit"},
            "to": {"enum": ["km", "mi"], "default": "mi", "description": "the unit wanted"},
        },
        "required": ["value"],
        "additionalProperties": False,
    }


def test_the_shape_of_a_chat_api() -> None:
    def method(self: Any) -> None:
        """Do it."""

    assert built(method).spec.to_openai() == {
        "type": "function",
        "function": {
            "name": "method",
            "description": "Do it.",
            "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        },
    }


def test_the_decorator_can_give_name_and_description() -> None:
    def method(self: Any) -> None:
        """Of no interest."""

    spec = built(method, name="go", description="Go there.").spec
    assert (spec.name, spec.description) == ("go", "Go there.")


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Literal["b", "a"], {"enum": ["a", "b"]}),
        (Literal[2, 1], {"enum": [1, 2]}),
        (Color, {"enum": ["blue", "red"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (list[Literal["a"]], {"type": "array", "items": {"enum": ["a"]}}),
        (int | list[int], {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}),
        (Annotated[int, Meta(ge=1, le=6)], {"type": "integer", "minimum": 1, "maximum": 6}),
        (Any, {}),
    ],
)
def test_types_become_json_schema(annotation: Any, schema: dict[str, Any]) -> None:
    assert schema_of(annotation) == schema


POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
}


def test_nested_structs_and_dataclasses_stand_where_they_are_used() -> None:
    assert schema_of(Point) == POINT
    assert schema_of(Box)["properties"]["corner"] == POINT
    assert schema_of(Box)["required"] == ["corner"]
    assert schema_of(list[Point])["items"] == POINT
    assert schema_of(dict[str, Point])["additionalProperties"] == POINT
    assert "$" not in json.dumps(schema_of(Box))


def test_a_type_that_contains_itself_is_referred_to() -> None:
    def method(self: Any, tree: Tree, point: Point) -> None: ...

    parameters = built(method).spec.parameters
    assert parameters["properties"]["tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert list(parameters["$defs"]) == ["Tree"]
    assert parameters["properties"]["point"] == POINT


def test_a_parameter_without_a_default_is_required() -> None:
    def method(self: Any, a: int, b: int | None, c: int | None = None, *, d: str, e: bool = False) -> None: ...

    assert built(method).spec.parameters["required"] == ["a", "b", "d"]


def test_defaults_are_shown() -> None:
    point = Point(1)

    def method(
        self: Any,
        a: int = 3,
        b: Color = Color.RED,
        c: list[int] = [1],  # noqa: B006
        d: Point = point,
        e: dict[str, int] = {},  # noqa: B006
    ) -> None: ...

    properties = built(method).spec.parameters["properties"]
    assert [p["default"] for p in properties.values()] == [3, "red", [1], {"x": 1, "y": 0}, {}]


# What cannot be said is refused when the class is defined


def unannotated(self, value): ...  # type: ignore[no-untyped-def]
def positional_only(self: Any, value: int, /) -> None: ...
def many(self: Any, *values: int) -> None: ...
def anything(self: Any, **values: int) -> None: ...
def a_complex(self: Any, value: complex) -> None: ...
def two_structs(self: Any, value: Point | Tree) -> None: ...
def an_object(self: Any, value: object = object()) -> None: ...
def unknown_type(self: Any, value: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def no_self() -> None: ...


def yields(self: Any) -> Any:
    yield 1


async def yields_async(self: Any) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (unannotated, "'value' has no type: annotate it, as in `value: str`"),
        (positional_only, "'value' is positional-only"),
        (many, "'values' takes any number of values, which a schema cannot say: use a `list"),
        (anything, "'values' takes any names, which a schema cannot say: use a `dict"),
        (a_complex, "complex.*Use str, int"),
        (two_structs, "Use str, int"),
        (an_object, "Use str, int"),
        (unknown_type, "'Nowhere' is not defined.*top level"),
        (no_self, "first parameter is `self`"),
        (yields, "use `return`, not `yield`"),
        (yields_async, "use `return`, not `yield`"),
    ],
)
def test_a_signature_that_cannot_be_expressed(method: Callable[..., Any], words: str) -> None:
    with pytest.raises(ToolDefinitionError, match=rf"(?s)^Env\.method: .*{words}"):
        built(method)


def test_a_static_method_is_no_tool() -> None:
    def method(value: int) -> None: ...

    with pytest.raises(ToolDefinitionError, match=r"Env\.method: .*`self`"):
        collect_tools(type("Env", (), {"method": staticmethod(tool(method))}))
    with pytest.raises(ToolDefinitionError, match="@tool stands above a method"):
        tool(staticmethod(method))  # type: ignore[type-var]


def test_a_bare_argument_of_the_decorator_says_how_it_is_written() -> None:
    with pytest.raises(ToolDefinitionError, match=r"@tool\(name=\.\.\.\)"):
        tool("go")  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["größe", "a b", "", "x" * 65])
def test_a_name_that_chat_apis_refuse(name: str) -> None:
    def method(self: Any) -> None: ...

    if name:
        with pytest.raises(ToolDefinitionError, match="no name for a tool"):
            built(method, name=name)


def test_two_tools_of_one_name() -> None:
    class Env:
        @tool
        def go(self) -> None: ...

        @tool(name="go")
        def walk(self) -> None: ...

    with pytest.raises(ToolDefinitionError, match="Env has two tools named 'go'"):
        collect_tools(Env)


# Inheritance


def test_tools_are_inherited_overridden_and_taken_away() -> None:
    class Base:
        @tool
        def first(self) -> None:
            """Base."""

        @tool
        def second(self) -> None: ...

        @tool
        def third(self) -> None: ...

    class Env(Base):
        @tool
        def fourth(self) -> None: ...

        @tool
        def first(self, n: int) -> None:  # type: ignore[override]
            """Env."""

        def second(self) -> None: ...

    tools = collect_tools(Env)
    assert list(tools) == ["first", "third", "fourth"]
    assert tools["first"].spec.description == "Env."
    assert list(collect_tools(Base)) == ["first", "second", "third"]


def test_an_inherited_tool_finds_the_types_of_its_own_class() -> None:
    class Base:
        class Where(Struct):
            x: int

        @tool
        def go(self, where: "Where") -> None: ...  # type: ignore[name-defined]

    class Env(Base): ...

    assert collect_tools(Env)["go"].parse({"where": {"x": 1}})["where"] == Base.Where(1)


def test_a_parameter_type_may_be_called_like_the_tool() -> None:
    def method(self: Any, where: Any) -> None: ...

    method.__annotations__["where"] = msgspec.defstruct("method", [("x", int)])
    assert built(method).spec.parameters["properties"]["where"]["properties"] == {"x": {"type": "integer"}}


# What the model says


def rich(
    self: Any,
    to: Literal["mi", "km"],
    color: Color = Color.RED,
    point: Point | None = None,
    numbers: list[int] = [1],  # noqa: B006
    by_number: dict[int, str] = {},  # noqa: B006
) -> None: ...


RICH = built(rich)


def test_arguments_are_converted_to_the_annotated_types_and_defaults_filled_in() -> None:
    assert RICH.parse({"to": "mi", "color": "blue", "point": {"x": 1}, "by_number": {"2": "two"}}) == {
        "to": "mi",
        "color": Color.BLUE,
        "point": Point(1, 0),
        "numbers": [1],
        "by_number": {2: "two"},
    }


@pytest.mark.parametrize("arguments", [{"to": "mi"}, '{"to": "mi"}', json.dumps('{"to": "mi"}')])
def test_json_and_json_inside_a_json_string_are_read(arguments: dict[str, Any] | str) -> None:
    assert RICH.parse(arguments)["to"] == "mi"


@pytest.mark.parametrize("arguments", ["", "  ", "{}", {}])
def test_no_arguments_at_all_are_an_empty_object(arguments: dict[str, Any] | str) -> None:
    def method(self: Any, n: int = 1) -> None: ...

    assert built(method).parse(arguments) == {"n": 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("[1, 2]", "not a JSON object but list"),
        ("12", "not a JSON object but int"),
        ("null", "not a JSON object but NoneType"),
        ('{"to": ', "not JSON"),
        ("mi", "not JSON"),
        ('"mi"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"to": "\ud800"}', "not JSON"),
        ({}, "`to` is missing"),
        ({"to": "mi", "tu": 1}, "`tu` is unknown"),
        ({"to": "ft"}, "'ft' - at `to`"),
        ({"to": "mi", "numbers": [1, "2"]}, r"Expected `int`, got `str` - at `numbers\[1\]`"),
        ({"to": "mi", "point": {"y": 1}}, "`x` is missing - at `point`"),
        ({"to": "mi", "color": None}, "- at `color`"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: dict[str, Any] | str, words: str) -> None:
    with pytest.raises(ToolArgumentsError, match=words) as told:
        RICH.parse(arguments)
    assert str(told.value).startswith("error: wrong arguments for method: ")
    assert "It takes: to (one of 'km', 'mi'), color (one of 'blue', 'red', optional)" in str(told.value)


@pytest.mark.parametrize(
    ("annotation", "value"), [(int, "3"), (int, 3.0), (int, True), (str, 3), (bool, 1), (float, "1")]
)
def test_nothing_is_converted_silently(annotation: Any, value: Any) -> None:
    def method(self: Any, value: Any) -> None: ...

    method.__annotations__["value"] = annotation
    with pytest.raises(ToolArgumentsError, match="Expected"):
        built(method).parse({"value": value})


def test_a_whole_number_is_a_float() -> None:
    def method(self: Any, value: float) -> None: ...

    assert built(method).parse({"value": 3}) == {"value": 3.0}


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    first, second = RICH.parse({"to": "mi"}), RICH.parse({"to": "mi"})
    first["numbers"].append(2)
    first["by_number"][1] = "one"
    assert (second["numbers"], second["by_number"]) == ([1], {})


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_whatever_the_model_says_is_parsed_or_answered(value: Any) -> None:
    for arguments in (json.dumps(value), value if isinstance(value, dict) else {"to": value}):
        with suppress(ToolArgumentsError):
            assert set(RICH.parse(arguments)) == {"to", "color", "point", "numbers", "by_number"}
