"""How numbers are written for people. An em dash stands for what was not measured."""

NONE = "—"


def share(value: float | None, digits: int = 1) -> str:
    """A share between 0 and 1 as a percentage."""
    return NONE if value is None else f"{100 * value:.{digits}f}%"


def number(value: float | None, digits: int = 2) -> str:
    """A number with thousands separated."""
    return NONE if value is None else f"{value:,.{digits}f}"


def seconds(value: float) -> str:
    """A duration: `4.2 s`, `3 min 05 s`, `2 h 07 min`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
