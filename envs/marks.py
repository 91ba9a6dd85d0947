"""`@reward`, `@metric` and `@stop`: methods that score, measure and end an episode.

All three may be sync or async. Rewards and metrics take the finished `Rollout`; a stop method takes nothing and is
asked after every step. A reward may return None: the rollout is then unscored, which is not the same as 0.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from moonmill.errors import ToolDefinitionError, defining

F = TypeVar("F", bound=Callable[..., Any])
Kind = Literal["reward", "metric", "stop"]
_MARK = "__moonmill_mark__"
_ARGUMENTS = {"reward": ["self", "rollout"], "metric": ["self", "rollout"], "stop": ["self"]}


class Mark(Struct, frozen=True):
    """A marked method."""

    method: str
    kind: Kind
    weight: float = 1.0


@overload
def reward(method: F, /) -> F: ...
@overload
def reward(*, weight: float = 1.0) -> Callable[[F], F]: ...
def reward(method: Callable[..., Any] | None = None, /, *, weight: float = 1.0) -> Any:
    """Score the finished episode: `def name(self, rollout: Rollout) -> float | None`.

    Args:
        method: the method, where the decorator is used without arguments.
        weight: what the value is multiplied by in the rollout's reward; 0 only records it.
    """

    if not math.isfinite(weight):
        raise ToolDefinitionError(f"@reward: the weight is {weight!r}, but should be a finite number")

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        return _mark(method, "reward", weight)

    return mark if method is None else mark(method)


def metric(method: F) -> F:
    """Measure the finished episode, without effect on training: `def name(self, rollout: Rollout) -> float | None`.

    None where there is nothing to measure.
    """
    return _mark(method, "metric")


def stop(method: F) -> F:
    """End the episode when this returns true: `def name(self) -> bool`, asked after every step."""
    return _mark(method, "stop")


def collect_marks(owner: type) -> tuple[Mark, ...]:
    """The marked methods of a class, base classes' first; an override without a mark is not one.

    Raises:
        ToolDefinitionError: a marked method has other parameters than its kind is called with.
    """
    names = dict.fromkeys(name for cls in reversed(owner.__mro__) for name in vars(cls))
    marks = []
    for name in names:
        mark = getattr(getattr(owner, name, None), _MARK, None)
        if not isinstance(mark, Mark):
            continue
        wanted = _ARGUMENTS[mark.kind]
        signature = inspect.signature(inspect.getattr_static(owner, name))
        try:
            signature.bind(*wanted)
        except TypeError:
            with defining(getattr(owner, name)):
                raise ToolDefinitionError(
                    f"{owner.__name__}.{name}: a @{mark.kind} method has the parameters ({', '.join(wanted)}), this "
                    f"one has ({', '.join(signature.parameters)})"
                ) from None
        marks.append(replace(mark, method=name))
    return tuple(marks)


def _mark(method: F, kind: Kind, weight: float = 1.0) -> F:
    if not inspect.isfunction(method):
        raise ToolDefinitionError(
            f"@{kind} stands above a method, not above {method!r:.100}; a weight is written @reward(weight=0.5)"
        )
    setattr(method, _MARK, Mark(method.__name__, kind, weight))
    return method
