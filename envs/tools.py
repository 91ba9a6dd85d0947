"""Tools: methods the model may call.

A tool's JSON schema comes from its signature and docstring, once, when the class is defined; what a signature cannot
say is refused there. Arguments are validated against the same types before the method runs: nothing is converted
silently, so `"3"` is no number.
"""

import copy
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, overload

import msgspec
from msgspec import Meta, Struct

from moonmill.envs.docstrings import parse_docstring
from moonmill.errors import ToolDefinitionError

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__moonmill_tool__"
_REFUSED_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, and a model names its arguments: remove the `/`",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values, which a schema cannot say: use a `list[...]`",
    inspect.Parameter.VAR_KEYWORD: "takes any names, which a schema cannot say: use a `dict[str, ...]`",
}


class ToolSpec(Struct, frozen=True):
    """What the model is told about a tool. `parameters` is a JSON schema of type `object`."""

    name: str
    description: str
    parameters: dict[str, Any]

    def to_openai(self) -> dict[str, Any]:
        """The shape of a chat API's `tools` list."""
        return {"type": "function", "function": msgspec.structs.asdict(self)}


class ToolArgumentsError(Exception):
    """The model's arguments do not fit the tool; the text is for the model."""


class Tool(Struct, frozen=True):
    """A method of an environment, with what is needed to call it safely."""

    spec: ToolSpec
    method: str
    is_async: bool
    arguments: type[Struct]

    def parse(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Keyword arguments for the method.

        Raises:
            ToolArgumentsError: they are not a JSON object of the tool's parameters.
        """
        value: Any = arguments
        for _ in range(2):  # Models wrap the object into a string of its own, but never twice.
            if isinstance(value, str):
                try:
                    value = msgspec.json.decode(value)
                except msgspec.MsgspecError as e:
                    raise ToolArgumentsError(self._complaint(f"they are not JSON ({e})")) from e
        if not isinstance(value, Mapping):
            raise ToolArgumentsError(self._complaint(f"they are not a JSON object but {type(value).__name__}"))
        try:
            parsed = msgspec.convert(dict(value), self.arguments)
        except msgspec.MsgspecError as e:
            raise ToolArgumentsError(self._complaint(str(e).replace("Object", "the object").replace("$.", ""))) from e
        return {field: getattr(parsed, field) for field in self.arguments.__struct_fields__}

    def _complaint(self, problem: str) -> str:
        properties = self.spec.parameters.get("properties", {})
        wanted = ", ".join(f"{name} ({_type_name(schema)})" for name, schema in properties.items()) or "none"
        return f"error: wrong arguments for {self.spec.name}: {problem}. It takes: {wanted}"


@overload
def tool(method: F, /) -> F: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[F], F]: ...
def tool(
    method: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None
) -> Any:
    """Let the model call this method, sync or async.

    The description is the docstring's first paragraph; each parameter's is its line under `Args:`. A parameter without
    a default is required. The result is shown to the model: text as it is, anything else as JSON.

    Args:
        method: the method, where the decorator is used without arguments.
        name: what the model calls it; the method's name if None.
        description: instead of the docstring's.
    """

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        setattr(method, _MARK, (name, description))
        return method

    return mark if method is None else mark(method)


def collect_tools(owner: type) -> dict[str, Tool]:
    """The tools of a class, by the name the model knows, base classes' first.

    Raises:
        ToolDefinitionError: a signature cannot be expressed, or two tools share a name.
    """
    tools: dict[str, Tool] = {}
    names = dict.fromkeys(name for cls in reversed(owner.__mro__) for name in vars(cls))
    for attribute in names:
        method = getattr(owner, attribute, None)
        if callable(method) and hasattr(method, _MARK):
            built = _build(owner, attribute, method)
            if built.spec.name in tools:
                raise ToolDefinitionError(f"{owner.__name__} has two tools named {built.spec.name!r}: rename one")
            tools[built.spec.name] = built
    return tools


def _build(owner: type, attribute: str, method: Callable[..., Any]) -> Tool:
    where = f"{owner.__name__}.{attribute}"
    name, description = getattr(method, _MARK)
    docs = parse_docstring(method.__doc__ or "")
    try:
        hints = typing.get_type_hints(method, localns=dict(vars(owner)), include_extras=True)
    except NameError as e:
        raise ToolDefinitionError(f"{where}: a type in its signature cannot be found: {e}") from e
    fields = [_field(where, p, hints, docs.args) for p in list(inspect.signature(method).parameters.values())[1:]]
    try:
        arguments = msgspec.defstruct(attribute, fields, kw_only=True, forbid_unknown_fields=True)
        schema = _schema(arguments)
    except (TypeError, ValueError) as e:
        raise ToolDefinitionError(
            f"{where}: its parameters cannot be described as JSON: {e}. Use str, int, float, bool, Literal, Enum, list, "
            "dict, Optional, dataclasses or msgspec.Struct"
        ) from e
    spec = ToolSpec(name or attribute, description or docs.summary, schema)
    return Tool(spec, attribute, inspect.iscoroutinefunction(method), arguments)


def _field(where: str, parameter: inspect.Parameter, hints: Mapping[str, Any], docs: Mapping[str, str]) -> Any:
    name = parameter.name
    if problem := _REFUSED_KINDS.get(parameter.kind):
        raise ToolDefinitionError(f"{where}: the parameter {name!r} {problem}")
    if name not in hints:
        raise ToolDefinitionError(f"{where}: the parameter {name!r} has no type: annotate it, as in `{name}: str`")
    type_ = Annotated[hints[name], Meta(description=docs[name])] if name in docs else hints[name]
    if parameter.default is inspect.Parameter.empty:
        return name, type_
    if isinstance(parameter.default, list | dict | set):
        return name, type_, msgspec.field(default_factory=lambda: copy.deepcopy(parameter.default))
    return name, type_, parameter.default


def _schema(arguments: type[Struct]) -> dict[str, Any]:
    """A schema of one piece: definitions stand where they are used, unless they contain themselves."""
    _, definitions = msgspec.json.schema_components((arguments,), ref_template="#/$defs/{name}")
    root = definitions.pop(arguments.__name__)
    root.pop("title", None)
    kept: set[str] = set()
    schema = _inline(root, definitions, (), kept)
    assert isinstance(schema, dict)
    if kept:
        schema["$defs"] = {name: definitions[name] for name in definitions}
    return schema


def _inline(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...], kept: set[str]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions, inside, kept) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in inside:
            kept.add(name)
            return node
        rest = {k: v for k, v in node.items() if k != "$ref"}
        target = _inline(definitions[name], definitions, (*inside, name), kept)
        return {**{k: v for k, v in target.items() if k != "title"}, **rest}
    return {key: _inline(value, definitions, inside, kept) for key, value in node.items()}


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type_name(option) for option in schema["anyOf"])
    return str(schema.get("type", "any value"))
