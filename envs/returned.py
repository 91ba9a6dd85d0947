"""What an author's methods return, made regular: a text is an observation, a numpy scalar is a number, the rest is an
error that says what was returned and what should be.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any, SupportsFloat, SupportsIndex

import msgspec
from msgspec.structs import replace

from moonmill.errors import EnvCodeError, RewardError
from moonmill.types import Message

UNBOUNDED = (-math.inf, math.inf)
_LARGEST = 1e15
"""The squares of what is beyond it would overflow where a learner sums them in float32."""
_FIVE = "(observation, reward, terminated, truncated, info)"
_TWO = "(observation, info)"


def unpacked(where: str, values: Any, count: int) -> Sequence[Any]:
    """The values of `reset` (two) or `step` (five).

    Raises:
        EnvCodeError: they are not.
    """
    if isinstance(values, tuple | list) and len(values) == count:
        return values
    if inspect.iscoroutine(values):
        values.close()  # Python would warn of it as well.
    hint = "; an async method is awaited: `await super().step(action)`" if hasattr(values, "__await__") else ""
    wanted = _TWO if count == 2 else _FIVE
    raise EnvCodeError(f"{where} returned {values!r:.200}, but should return {wanted}{hint}")


def as_observation(where: str, observation: Any) -> tuple[Message, ...]:
    """New messages for the model, from a text, a message, several, or None.

    Raises:
        EnvCodeError: it is something else.
    """
    if isinstance(observation, tuple | list) and all(isinstance(m, Message) for m in observation):
        return tuple(_loggable(where, message) for message in observation)
    if isinstance(observation, Message):
        return as_observation(where, (observation,))
    if observation is None or observation == "":
        return ()
    if isinstance(observation, str):
        return (Message("user", encodable(observation)),)
    raise EnvCodeError(
        f"{where} returned the observation {observation!r:.200}, but an observation is a text, a Message, a sequence "
        "of Messages or None"
    )


def _loggable(where: str, message: Message) -> Message:
    """The message, if a log that has it can be read again."""
    try:
        said = replace(message, content=encodable(message.content))
        return msgspec.convert(msgspec.to_builtins(said), Message)
    except (TypeError, ValueError) as e:
        raise EnvCodeError(f"{where} returned {message!r:.200}, which is not as a Message should be: {e}") from e


def encodable(text: str) -> str:
    """`text` as a `str` that UTF-8 can say: undecodable file names are none, and no log takes them."""
    return str.__str__(text) if str.isascii(text) else str.encode(text, "utf-8", "replace").decode()


def shortened(text: str, limit: int | None) -> str:
    """The beginning and the end of a text that has more than `limit` characters."""
    if limit is None or len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half :]}"


def as_turn_reward(env_id: str, value: Any, bounds: tuple[float, float]) -> float:
    """A turn's reward as `as_number` has it; a turn that earns nothing is within all bounds."""
    return 0.0 if value == 0 else as_number(f"{env_id}: step, as the turn's reward,", value, bounds)


def as_number(what: str, value: Any, bounds: tuple[float, float]) -> float:
    """A finite number within `bounds`.

    Raises:
        RewardError: it is not.
    """
    low, high = bounds
    number = math.nan
    if isinstance(value, int | float | SupportsFloat | SupportsIndex):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if max(low, -_LARGEST) <= number <= min(high, _LARGEST):
        return number
    limits = "" if math.isinf(low) and math.isinf(high) else f" within [{low:g}, {high:g}] (reward_bounds)"
    if math.isfinite(number) and abs(number) > _LARGEST:
        limits += f", and not beyond ±{_LARGEST:g}"
    raise RewardError(f"{what} returned {value!r:.100}; it must be a finite number{limits}")
