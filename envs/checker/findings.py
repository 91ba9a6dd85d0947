"""What checks say: what is wrong, where, the value seen, and what to do."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

Level = Literal["error", "warning"]
_SHOWN = 400
"""Characters of a value that are shown."""


class Finding(Struct, frozen=True):
    """One thing that is wrong (`error`) or likely so (`warning`)."""

    level: Level
    what: str
    advice: str
    where: str = ""
    """`file:line`, where it is known."""
    value: str = ""
    """What was seen."""
    check: str = ""
    """The name of the check that found it."""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        value = f"\n  seen: {self.value}" if self.value else ""
        return f"{self.level}: {self.check}: {self.what}{where}{value}\n  to do: {self.advice}"


class Figures(Struct, frozen=True):
    """How fast it was here, with a player that takes no time."""

    reset_ms: float | None = None
    step_ms: float | None = None
    """Both are medians over the episodes of all checks."""
    tasks_per_second: float | None = None


class Report(Struct, frozen=True):
    """What has become of all checks."""

    env: str
    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    """Checks that have found nothing."""
    skipped: dict[str, str]
    """Checks that were not made, each with the one that failed before."""
    figures: Figures = Figures()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.level == "warning")

    @property
    def ok(self) -> bool:
        """Nothing but warnings."""
        return not self.errors


def error(what: str, advice: str, *, where: str = "", value: object = "", check: str = "") -> Finding:
    """Training would go wrong."""
    return Finding("error", what, advice, where, shown(value), check)


def warning(what: str, advice: str, *, where: str = "", value: object = "") -> Finding:
    """It may be meant so."""
    return Finding("warning", what, advice, where, shown(value))


def place(thing: Callable[..., Any] | type) -> str:
    """`file:line` of a function or class, empty where there is no source."""
    try:
        found: Any = inspect.unwrap(thing)
        _, line = inspect.getsourcelines(found)
        return f"{inspect.getsourcefile(found)}:{line}"
    except (TypeError, OSError):
        return ""


def shown(value: object) -> str:
    """A value as a finding shows it: short, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
