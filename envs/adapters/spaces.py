"""Gymnasium's spaces in words: what a model may answer, what its answer means, and what it is shown."""

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from gymnasium import Space, spaces

from moonmill.envs.tools import ToolArgumentsError
from moonmill.errors import ConfigError

LARGEST_BOX = 64
"""Numbers in a Box that a model can be expected to read, or to write."""

Given = str | int | float | list[Any]
"""What a model gave as its action."""


class ActionSpace:
    """An action space that is answered in words.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, Text, or a Box of at most `LARGEST_BOX` numbers.
        names: of a Discrete space's actions, in their order; without them they are numbers.

    Raises:
        ConfigError: the space is of another kind, or the names do not fit it.
    """

    def __init__(self, space: Space[Any], names: Sequence[str] = ()) -> None:
        self.space = space
        self._names = tuple(names)
        if names and not (isinstance(space, spaces.Discrete) and space.n == len(names)):
            raise ConfigError(f"actions has {len(names)} names, but the action space is {space}")
        self.words = self._words()
        """What an action is, for the model: `one of: left, down, right, up`."""

    def read(self, given: Given) -> Any:
        """The action that the model's answer means, as `space` has it.

        Raises:
            ToolArgumentsError: it means none; the text is for the model.
        """
        if isinstance(self.space, spaces.Text):
            action: Any = given
        elif isinstance(self.space, spaces.Discrete):
            action = self._discrete(given)
        else:
            action = self._numbers(given)
        if action is None or not self.space.contains(action):
            raise ToolArgumentsError(f"error: {str(given)!r:.100} is no action; an action is {self.words}")
        return action

    def _discrete(self, given: Given) -> int | None:
        assert isinstance(self.space, spaces.Discrete)
        word = str(given).strip().casefold()
        for index, name in enumerate(self._names):
            if word == name.casefold():
                return int(self.space.start) + index
        return int(word) if re.fullmatch(r"-?\d{1,18}", word, re.ASCII) else None

    def _numbers(self, given: Given) -> Any:
        """An array of the space's shape and type, None where that cannot be had of it."""
        values = re.split(r"[\s,]+", given.strip("[](){} \t\r\n")) if isinstance(given, str) else given
        try:
            array = np.asarray(values, dtype=np.float64).reshape(self.space.shape or ())
        except (ValueError, TypeError, OverflowError):
            return None
        if not np.isfinite(array).all():
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            action = array.astype(self.space.dtype)
        # A whole number that the type does not have comes out as another, which may well be an action.
        is_another = np.issubdtype(self.space.dtype, np.integer) and (action != array).any()
        return None if is_another else action

    def _words(self) -> str:
        match self.space:
            case spaces.Discrete() if self._names:
                return f"one of: {', '.join(self._names)}"
            case spaces.Discrete(start=start, n=n):
                return f"a whole number from {start} to {start + n - 1}"
            case spaces.Text(min_length=least, max_length=most):
                return f"a text of {least} to {most} characters"
            case spaces.MultiBinary(shape=shape):
                return f"a list of {math.prod(shape)} numbers, each 0 or 1"
            case spaces.MultiDiscrete(start=starts, nvec=sizes):
                ends = zip(starts.flat, sizes.flat, strict=True)
                return "a list of whole numbers: " + ", ".join(f"{low} to {low + n - 1}" for low, n in ends)
            case spaces.Box(low=lows, high=highs) if lows.size <= LARGEST_BOX:
                bounds = zip(lows.flat, highs.flat, strict=True)
                return "a list of numbers: " + ", ".join(f"{low:g} to {high:g}" for low, high in bounds)
        raise ConfigError(
            f"the action space {self.space!s:.200} cannot be answered in words: Discrete, MultiDiscrete, MultiBinary, "
            f"Text and Box of at most {LARGEST_BOX} numbers can"
        )


def check_observations(space: Space[Any]) -> None:
    """Refuse what a model cannot read.

    Raises:
        ConfigError: with the part of the space that is too large, or of no kind that has words.
    """
    match space:
        case spaces.Discrete() | spaces.Text():
            return
        case spaces.Tuple(spaces=parts):
            for part in parts:
                check_observations(part)
        case spaces.Dict():
            for part in space.values():
                check_observations(part)
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary() if math.prod(space.shape) <= LARGEST_BOX:
            return
        case _:
            raise ConfigError(
                f"the observation space {space!s:.200} cannot be told in words, but for spaces of at most "
                f"{LARGEST_BOX} numbers: where the environment can draw itself as text, give "
                "`kwargs: {render_mode: ansi}`; else wrap it with gymnasium.wrappers.TransformObservation"
            )


def told(observation: Any) -> str:
    """An observation as text: JSON, with numbers of four digits, but for texts, which stay as they are."""
    return observation if isinstance(observation, str) else msgspec.json.encode(_plain(observation)).decode()


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float():
            return float(f"{value:.4g}")
    return value
