"""What a look at a config tells."""

from typing import NamedTuple

from msgspec import Struct


class Warned(NamedTuple):
    """What a look has found that lets a run begin, and may well not be what is wanted."""

    detail: str
    warning: str
    """A line that is understood alone."""


class Check(Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    ok: bool | None
    """None where it could not be looked at, because of another check that failed."""
    detail: str
    warning: str = ""
    """Of what can be trained, and may well not be what is wanted; mostly empty."""
