"""What the built-in environments have in common: levels, and splits that no problem is in both of."""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from moonmill.errors import ConfigError
from moonmill.seeding import one_in

Split = Literal["train", "eval"]
EVAL_SHARE = 8
"""One problem in so many belongs to `eval`."""


def split_of(problem: str) -> Split:
    """The split a problem belongs to, from nothing but its own text: no seed or level can make it appear in both."""
    return "eval" if one_in(EVAL_SHARE, problem) else "train"


def check_split(env: str, split: str) -> None:
    """Refuse a split that is neither `train` nor `eval`.

    Raises:
        ConfigError: it is.
    """
    if split not in get_args(Split):
        raise ConfigError(f"{env} has no split {split!r}: it has train and eval")


def checked_levels(env: str, levels: Sequence[int], highest: int) -> tuple[int, ...]:
    """The levels that were asked for.

    Raises:
        ConfigError: they are not whole numbers from 1 to `highest`, or there are none.
    """
    try:
        chosen = msgspec.convert(levels, tuple[int, ...])
    except msgspec.ValidationError:
        chosen = ()
    if not chosen or not all(1 <= level <= highest for level in chosen):
        raise ConfigError(
            f"{env}: levels is {levels!r}, but should be a list of whole numbers from 1 to {highest}, such as [1, 2]"
        )
    return chosen
