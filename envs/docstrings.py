"""What a Google-style docstring says: the first paragraph, and a line for each argument."""

import inspect
import re

from msgspec import Struct

_ARGUMENT = re.compile(r"(\s*)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")
_SECTION = re.compile(r"[A-Z]\w*:\s*$")


class Docs(Struct, frozen=True):
    """The parts of a docstring a model is shown."""

    summary: str
    args: dict[str, str]


def parse_docstring(text: str) -> Docs:
    """Read `text`; what it does not have is empty."""
    lines = inspect.cleandoc(text).splitlines()
    summary = []
    for line in lines:
        if not line.strip() or _SECTION.match(line):
            break
        summary.append(line.strip())
    return Docs(" ".join(summary), _arguments(lines))


def _arguments(lines: list[str]) -> dict[str, str]:
    """The entries below `Args:`. A line that is indented deeper than its entry continues it."""
    found: dict[str, str] = {}
    start = next((i for i, line in enumerate(lines) if line.strip() in ("Args:", "Arguments:")), len(lines))
    indent: int | None = None
    name = ""
    for line in lines[start + 1 :]:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            break
        entry = _ARGUMENT.fullmatch(line)
        if entry and depth <= (depth if indent is None else indent):
            indent, name = depth, entry[2]
            found[name] = entry[3]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
