"""A line of the report, and what makes one of a fact that is not there."""

from typing import Literal

from msgspec import Struct

from moonmill.trainer.doctor.facts import Unknown

AGAIN = "try again when less else runs here"
Status = Literal["ok", "warning", "missing"]


class Line(Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    status: Status
    """`missing`: it is not there, or does not work."""
    found: str
    todo: str = ""
    """What to do about it: mostly a command."""


def not_seen(name: str, fact: Unknown) -> Line:
    """What stands for a fact that could not be found out."""
    return Line(name, "warning", f"could not be looked at: {fact.reason}", AGAIN * fact.late)
