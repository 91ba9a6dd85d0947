"""YAML as a person writing a config means it.

YAML 1.2's plain values: `1e-6` is a number; `yes`, `on` and `12:30` are text; only `true` and `false` are truth values.
A key that stands twice in one mapping is refused, instead of the second silently winning; so is what no config has use
for: types beyond JSON's, nesting without end, aliases that grow into something huge. What `dump` writes, both `parse`
and readers of YAML 1.1 read back as the same values.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import yaml
from msgspec import Struct

from moonmill.errors import ConfigError

Path = tuple[str, ...]

DEEPEST = 64
"""How deep mappings and lists may nest."""
_SHOWN = 60
"""Characters of a wrong value that a message repeats."""
_MOST_VALUES = 100_000
"""Values of a document, each counted as often as aliases repeat it."""
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
_LINE_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
_INT = re.compile(r"[-+]?[0-9]+$")
_NULL = re.compile(r"(?:~|null|Null|NULL|)$")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Document(Struct, frozen=True):
    """What a YAML text holds, and where."""

    data: Any
    lines: dict[Path, int]
    """The line, counted from 1, of every key that is text all the way down."""


def parse(text: str, source: str) -> Document:
    """Read the one document in `text`; `source` names it in errors.

    Raises:
        ConfigError: the text is not YAML, or a key stands twice.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = dict(_keys(node, (), set(), source)) if node else {}
        return Document(loader.construct_object(node, deep=True) if node else None, lines)  # deep refuses cycles
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source} is not valid YAML{where}: {e.problem or e.context}") from e
    except yaml.reader.ReaderError as e:
        raise ConfigError(f"{source} is not valid YAML: character #x{e.character:04x} is not allowed in it") from e
    except (ValueError, OverflowError) as e:  # an escape beyond Unicode
        raise ConfigError(f"{source} is not valid YAML: {e}") from e


def dump(data: Any) -> str:
    """`data` as block-style YAML, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # YAML 1.1's are not wanted
    yaml_constructors: ClassVar[dict[str | None, Any]] = {  # nor are its dates, sets and bytes
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map", None)
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open = 0
        self._extents: dict[int, _Extent] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse here what would take all stack or memory later."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._open += 1
        _refuse(self._open > DEEPEST, f"it is nested more than {DEEPEST} deep", mark)
        node = super().compose_node(parent, index)
        self._open -= 1
        if node is not None and id(node) not in self._extents:
            text = node.value if isinstance(node, yaml.ScalarNode) else ""
            _refuse(_LONE_SURROGATE.search(text), "half a character (a lone surrogate) is no text", mark)
            extent = self._extents[id(node)] = self._extent(node)
            _refuse(extent.depth > DEEPEST, f"with its aliases it is nested more than {DEEPEST} deep", mark)
            _refuse(extent.values > _MOST_VALUES, f"with its aliases it has more than {_MOST_VALUES:,} values", mark)
        return node

    def _extent(self, node: yaml.Node) -> "_Extent":
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
        # One that is missing holds this node: a cycle, which the constructor refuses.
        inside = [self._extents[id(part)] for part in parts if id(part) in self._extents]
        return _Extent(1 + sum(e.values for e in inside), 1 + max((e.depth for e in inside), default=0))


class _Extent(Struct, frozen=True):
    """How much a node holds, aliases followed."""

    values: int
    depth: int


def _refuse(wrong: object, problem: str, mark: yaml.Mark) -> None:
    if wrong:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _add_scalar(name: str, form: re.Pattern[str], first: list[str], convert: Callable[[str], Any]) -> None:
    """A kind of plain value: found by its form, and where a tag asks for it, refused in any other."""

    def construct(loader: _Loader, node: yaml.ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        _refuse(not form.match(text), f"{text[:_SHOWN]!r} is no {name}", node.start_mark)
        try:
            return convert(text)
        except ValueError as e:  # a number of more digits than Python reads
            raise yaml.MarkedYAMLError(problem=str(e), problem_mark=node.start_mark) from e

    _Loader.add_implicit_resolver(f"{_TAG}{name}", form, first)
    _Loader.add_constructor(f"{_TAG}{name}", construct)


def _number(text: str) -> float:
    """YAML writes `.inf` and `.nan`."""
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_add_scalar("null", _NULL, ["~", "n", "N", ""], lambda text: None)
_add_scalar("bool", _BOOL, list("tTfF"), lambda text: text.lower() == "true")
_add_scalar("int", _INT, list("-+0123456789"), int)
_add_scalar("float", _FLOAT, list("-+.0123456789"), _number)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Double quotes where YAML would fold a Unicode line break into a space."""
        style = '"' if _LINE_BREAKS.search(text) else None
        return self.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver(f"{_TAG}int", _INT, list("-+0123456789"))
_Dumper.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


def _keys(node: yaml.Node, path: Path, seen: set[int], source: str) -> Iterator[tuple[Path, int]]:
    """The paths below `node`. A node that an alias repeats is walked once."""
    if id(node) in seen or not isinstance(node, yaml.MappingNode):
        return
    seen.add(id(node))
    first: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        name = key.value
        if name in first:
            where = ".".join((*path, name))
            raise ConfigError(f"{source}: `{where}` stands twice, at lines {first[name]} and {line}; keep one of them")
        first[name] = line
        yield (*path, name), line
        yield from _keys(value, (*path, name), seen, source)
