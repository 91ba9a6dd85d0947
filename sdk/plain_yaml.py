"""YAML as a person writing a config means it.

YAML 1.2's plain values: `1e-6` is a number; `yes`, `on` and `12:30` are text; only `true` and `false` are truth values.
A key that stands twice in one mapping is refused, instead of the second silently winning. What `dump` writes, both
`parse` and readers of YAML 1.1 read back as the same values.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct

from moonmill.errors import ConfigError

Path = tuple[str, ...]

_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
_LINE_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
_INT = re.compile(r"[-+]?[0-9]+$")


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
    except ValueError as e:
        raise ConfigError(f"{source} is not valid YAML: {e}") from e


def dump(data: Any) -> str:
    """`data` as block-style YAML, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # YAML 1.1's are not wanted


_TAG = "tag:yaml.org,2002:"
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


_Loader.add_constructor(f"{_TAG}int", _whole_number)


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
