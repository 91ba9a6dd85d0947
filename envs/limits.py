"""What an author sets on an environment's class or instances, limits and sandbox: checked where it is set, not where it
bites.
"""

import difflib
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from moonmill.errors import EnvCodeError
from moonmill.sandboxes.errors import SandboxSpecError
from moonmill.sandboxes.specs import check_spec
from moonmill.sandboxes.types import SandboxSpec

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


class Limits(Struct, frozen=True):
    """The limits of an episode, as `MultiTurnEnv` documents them."""

    max_turns: int
    max_tokens: int | None
    max_seconds: float
    max_scoring_seconds: float
    reward_bounds: tuple[float, float]


def check_class(owner: type) -> None:
    """Refuse limits that are none, and names that are almost one's.

    Raises:
        EnvCodeError: with the class, the value and what it should be.
    """
    for name, value in vars(owner).items():
        if name in _LIMITS and not hasattr(value, "__get__"):  # A property is asked of the instance.
            _check(owner.__name__, name, value)
        elif name == "sandbox":
            check_sandbox(owner, value)
        elif name not in _LIMITS and not name.startswith("_"):
            for near in difflib.get_close_matches(name, _LIMITS, n=1, cutoff=_ALIKE):
                raise EnvCodeError(f"{owner.__name__}.{name}: there is no such limit; did you mean {near}?")


def check_sandbox(owner: type, value: object) -> SandboxSpec | None:
    """What an author has set as `sandbox`, if it is something that can be.

    Raises:
        EnvCodeError: with the class, the value and what it should be.
    """
    if value is None:
        return None
    if not isinstance(value, SandboxSpec):
        hint = f"; write {value.__name__}()" if isinstance(value, type) and issubclass(value, SandboxSpec) else ""
        raise EnvCodeError(f"{owner.__name__}.sandbox is {value!r:.100}, but should be a SandboxSpec, or None{hint}")
    try:
        check_spec(value)
    except SandboxSpecError as e:
        raise EnvCodeError(f"{owner.__name__}.sandbox: {e}") from e
    return value


def limits_of(env: object) -> Limits:
    """The limits of an instance, wherever they were set. Runs what an author has written as a property.

    Raises:
        EnvCodeError: with the class, the value and what it should be.
    """
    found = {name: getattr(env, name) for name in _LIMITS}
    for name, value in found.items():
        _check(type(env).__name__, name, value)
    return Limits(**{name: found[name] for name in Limits.__struct_fields__})


def _check(owner: str, name: str, value: Any) -> None:
    wanted, words = _LIMITS[name]
    try:
        found = msgspec.convert(value, wanted)
        if name == "reward_bounds" and not found[0] < found[1]:
            raise msgspec.ValidationError("the wrong way round")
    except msgspec.ValidationError:
        raise EnvCodeError(f"{owner}.{name} is {value!r:.100}, but should be {words}") from None
