"""What a model should know of some of Gymnasium's own environments, which do not say it themselves."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class Known(Struct, frozen=True):
    """An environment's rules and words."""

    rules: str
    actions: tuple[str, ...]
    told: Callable[[Any], str] | None = None
    """An observation as text; None where the environment draws itself as text (`render_mode="ansi"`)."""


def _taxi(observation: Any) -> str:
    rest, destination = divmod(int(observation), 4)
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    where = ("is at R", "is at G", "is at Y", "is at B", "is in the taxi")[passenger]
    return f"The taxi is in row {row}, column {column}. The passenger {where} and wants to go to {'RGYB'[destination]}."


def _blackjack(observation: Any) -> str:
    total, dealer, ace = (int(value) for value in observation)
    return f"You have {total}{', with an ace that counts 11' if ace else ''}. The dealer shows {dealer}."


def _cartpole(observation: Any) -> str:
    names = ("cart position", "cart velocity", "pole angle in radians", "pole velocity at its tip")
    return ", ".join(f"{name} {value:.3f}" for name, value in zip(names, observation, strict=True))


_LAKE = Known(
    "Cross a frozen lake, from S to G. F is ice, H a hole: who steps into one has lost. You are where the brackets "
    "are. The ice may be slippery; then a step can also go to its left or right.",
    ("left", "down", "right", "up"),
)
_CLIFF = Known(
    "Walk from the lower left corner to T along the cliff of C, which sends you back. You are x. The ground may be "
    "slippery; then a step can also go to its left or right.",
    ("up", "right", "down", "left"),
)
_TAXI_MAP = """+---------+
|R: | : :G|
| : | : : |
| : : : : |
| | : | : |
|Y| : |B: |
+---------+"""

KNOWN: dict[str, Known] = {
    "FrozenLake": _LAKE,
    "FrozenLake8x8": _LAKE,
    "CliffWalking": _CLIFF,
    "CliffWalkingSlippery": _CLIFF,
    "Taxi": Known(
        "Drive the taxi to the passenger, pick them up, and drop them off where they want to go. Rows and columns "
        f"count from 0, at the top left; | is a wall, : can be passed.\n{_TAXI_MAP}",
        ("south", "north", "east", "west", "pickup", "dropoff"),
        _taxi,
    ),
    "Blackjack": Known(
        "Play a hand of blackjack: come closer to 21 than the dealer, but not above it.", ("stick", "hit"), _blackjack
    ),
    "CartPole": Known(
        "Keep the pole on the cart upright, and the cart within 2.4 of the middle, by pushing it left or right.",
        ("left", "right"),
        _cartpole,
    ),
}
"""By the name in an id such as `FrozenLake-v1`."""
