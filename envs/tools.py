"""Tools: methods the model may call.

A tool's JSON schema comes from its signature and docstring, once, when the class is defined; what a signature cannot
say is refused there. Arguments are validated against the same types before the method runs: nothing is converted
silently, so `"3"` is no number.
"""

import copy
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar, overload

import msgspec
from msgspec import Meta, Struct

from moonmill.envs.docstrings import parse_docstring
from moonmill.errors import ToolDefinitionError, defining

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__moonmill_tool__"
_IMMUTABLE = (str, int, float, bool, type(None), Enum)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SELF_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REFUSED_KINDS: dict[Any, str] = {
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


class UnknownToolError(ToolArgumentsError):
    """The model called a tool that is not there."""


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
                value = self._decoded(value)
        if not isinstance(value, Mapping):
            raise ToolArgumentsError(self._complaint(f"they are not a JSON object but {type(value).__name__}"))
        try:
            parsed = msgspec.convert(dict(value), self.arguments, str_keys=True)
        except msgspec.MsgspecError as e:
            raise ToolArgumentsError(self._complaint(_in_words(str(e)))) from e
        return {field: getattr(parsed, field) for field in self.arguments.__struct_fields__}

    def _decoded(self, text: str) -> Any:
        if not text.strip():
            return {}  # How some models call a tool without arguments.
        try:
            return msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
            raise ToolArgumentsError(self._complaint(f"they are not JSON ({e})")) from e

    def _complaint(self, problem: str) -> str:
        properties = self.spec.parameters.get("properties", {})
        required = self.spec.parameters.get("required", ())
        wanted = ", ".join(
            f"{name} ({_type_name(schema)}{'' if name in required else ', optional'})"
            for name, schema in properties.items()
        )
        return f"error: wrong arguments for {self.spec.name}: {problem}. It takes: {wanted or 'none'}"


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
        if not inspect.isfunction(method):
            raise ToolDefinitionError(
                f"@tool stands above a method with `self`, not above {method!r:.100}; a name is written @tool(name=...)"
            )
        setattr(method, _MARK, (name, description))
        return method

    return mark if method is None else mark(method)


def collect_tools(owner: type) -> dict[str, Tool]:
    """The tools of a class, by the name the model knows, base classes' first.

    Raises:
        ToolDefinitionError: a signature cannot be expressed, or two tools share a name.
    """
    tools: dict[str, Tool] = {}
    scope = {name: value for cls in reversed(owner.__mro__) for name, value in vars(cls).items()}
    for attribute in scope:
        method = getattr(owner, attribute, None)
        if callable(method) and hasattr(method, _MARK):
            with defining(method):
                built = _build(owner, attribute, method, scope)
                if built.spec.name in tools:
                    raise ToolDefinitionError(f"{owner.__name__} has two tools named {built.spec.name!r}: rename one")
            tools[built.spec.name] = built
    return tools


def _build(owner: type, attribute: str, method: Callable[..., Any], scope: Mapping[str, Any]) -> Tool:
    where = f"{owner.__name__}.{attribute}"
    name, description = getattr(method, _MARK)
    name = name or attribute
    if not _NAME.fullmatch(name):
        raise ToolDefinitionError(
            f"{where}: {name!r} is no name for a tool: chat APIs take up to 64 letters, digits, `_` and `-`; give it "
            "one with @tool(name=...)"
        )
    docs = parse_docstring(method.__doc__ or "")
    try:
        hints = typing.get_type_hints(method, localns=dict(scope), include_extras=True)
    except Exception as e:  # Whatever evaluating an annotation raises.
        raise ToolDefinitionError(
            f"{where}: a type in its signature cannot be found: {e}. Define it above the class, at the top level of "
            "its module"
        ) from e
    try:
        fields = [_field(where, p, hints, docs.args) for p in _parameters(where, owner, attribute)]
        arguments = msgspec.defstruct(attribute, fields, kw_only=True, forbid_unknown_fields=True)
        schema = _schema(arguments)
    except ToolDefinitionError:
        raise
    except (TypeError, ValueError, RuntimeError, NameError) as e:
        raise ToolDefinitionError(
            f"{where}: its parameters cannot be described as JSON: {e}. Use str, int, float, bool, Literal, Enum, "
            "list, dict, Optional, dataclasses or msgspec.Struct"
        ) from e
    spec = ToolSpec(name, description or docs.summary, schema)
    return Tool(spec, attribute, inspect.iscoroutinefunction(method), arguments)


def _parameters(where: str, owner: type, attribute: str) -> list[inspect.Parameter]:
    """What the model gives: all but `self`."""
    method = inspect.getattr_static(owner, attribute)
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise ToolDefinitionError(f"{where}: a tool returns its result once: use `return`, not `yield`")
    parameters = list(inspect.signature(method).parameters.values()) if inspect.isfunction(method) else []
    if not parameters or parameters[0].kind not in _SELF_KINDS:
        raise ToolDefinitionError(f"{where}: a tool is a method of its environment: its first parameter is `self`")
    return parameters[1:]


def _field(where: str, parameter: inspect.Parameter, hints: Mapping[str, Any], docs: Mapping[str, str]) -> Any:
    name = parameter.name
    if problem := _REFUSED_KINDS.get(parameter.kind):
        raise ToolDefinitionError(f"{where}: the parameter {name!r} {problem}")
    if name not in hints:
        raise ToolDefinitionError(f"{where}: the parameter {name!r} has no type: annotate it, as in `{name}: str`")
    type_: Any = Annotated[hints[name], Meta(description=docs[name])] if name in docs else hints[name]
    if parameter.default is inspect.Parameter.empty:
        return name, type_
    default = parameter.default
    if isinstance(default, _IMMUTABLE):
        return name, type_, default
    # A copy for each call: what a tool puts into it must not be found by the next.
    shown: Any = Annotated[type_, Meta(extra_json_schema={"default": msgspec.to_builtins(default, str_keys=True)})]
    return name, shown, msgspec.field(default_factory=lambda: copy.deepcopy(default))


def _schema(arguments: type[Struct]) -> dict[str, Any]:
    """A schema of one piece: definitions stand where they are used, unless they contain themselves."""
    (found,), definitions = msgspec.json.schema_components((arguments,), ref_template="#/$defs/{name}")
    root = definitions.pop(_referred(found))
    kept: dict[str, Any] = {}
    schema: dict[str, Any] = _inline(_untitled(root), definitions, (), kept)
    return {**schema, "$defs": kept} if kept else schema


def _inline(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...], kept: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions, inside, kept) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = _referred(node)
        if name in inside:
            if name not in kept:
                kept[name] = None  # Known from here on, so that its own body can refer to it.
                kept[name] = _untitled(_inline(definitions[name], definitions, (name,), kept))
            return node
        rest = {k: v for k, v in node.items() if k != "$ref"}
        target = _inline(definitions[name], definitions, (*inside, name), kept)
        return {**_untitled(target), **rest}
    return {key: _inline(value, definitions, inside, kept) for key, value in node.items()}


def _referred(node: Mapping[str, Any]) -> str:
    return str(node["$ref"]).rpartition("/")[2]


def _untitled(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}


def _in_words(problem: str) -> str:
    """What msgspec says of arguments, in the words of a function's caller."""
    problem = re.sub(r"^Object missing required field (`.*?`)", r"\1 is missing", problem)
    problem = re.sub(r"^Object contains unknown field (`.*?`)", r"\1 is unknown", problem)
    return re.sub(r" - at `\$\.?([^`]+)`$", r" - at `\1`", problem)


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type_name(option) for option in schema["anyOf"])
    return str(schema.get("type", "any value"))
