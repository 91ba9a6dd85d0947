"""The limits an author sets on an environment's class or instances: checked where they are set, not where they bite."""

import difflib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from moonmill.errors import EnvCodeError

_Whole = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]
_LIMITS: dict[str, tuple[Any, str]] = {
    "max_turns": (_Whole, "a whole number of at least 1"),
    "max_tokens": (_Whole | None, "a whole number of at least 1, or None"),
    "max_seconds": (_Seconds, "a number above 0"),
    "max_scoring_seconds": (_Seconds, "a number above 0"),
    "max_task_seconds": (_Seconds, "a number above 0"),
    "max_answer_chars": (_Whole | None, "a whole number of at least 1, or None"),
    "reward_bounds": (tuple[float, float], "two numbers, the lower first"),
    "system_prompt": (str | None, "a text, or None"),
}
_ALIKE = 0.9


def check_class(owner: type) -> None:
    """Refuse limits that are none, and names that are almost one's.

    Raises:
        EnvCodeError: with the class, the value and what it should be.
    """
    for name, value in vars(owner).items():
        if name in _LIMITS and not hasattr(value, "__get__"):  # A property is asked of the instance.
            _check(owner.__name__, name, value)
        elif name not in _LIMITS and not name.startswith("_"):
            for near in difflib.get_close_matches(name, _LIMITS, n=1, cutoff=_ALIKE):
                raise EnvCodeError(f"{owner.__name__}.{name}: there is no such limit; did you mean {near}?")


def check_instance(env: object) -> None:
    """Refuse limits that are none, wherever they were set.

    Raises:
        EnvCodeError: with the class, the value and what it should be.
    """
    for name in _LIMITS:
        _check(type(env).__name__, name, getattr(env, name))


def _check(owner: str, name: str, value: Any) -> None:
    wanted, words = _LIMITS[name]
    try:
        found = msgspec.convert(value, wanted)
        if name == "reward_bounds" and not found[0] < found[1]:
            raise msgspec.ValidationError("the wrong way round")
    except msgspec.ValidationError:
        raise EnvCodeError(f"{owner}.{name} is {value!r:.100}, but should be {words}") from None
