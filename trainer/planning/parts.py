"""What takes memory, by name. Sizes are bytes; what is shown is GiB, of 2³⁰ bytes."""

from msgspec import Struct

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}


class Part(Struct, frozen=True):
    """One row of a plan."""

    name: str
    bytes: int
    detail: str = ""
    passing: bool = False
    """Whether it is there only while the learner computes."""


def total(parts: "tuple[Part, ...]") -> int:
    """Bytes of all parts together."""
    return sum(part.bytes for part in parts)


def gib(size: float) -> str:
    """Bytes as GiB, for people."""
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"


def count(number: float) -> str:
    """A number of parameters, for people: `596M`, `30.5B`."""
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"
