"""Numbers of a certain range, and choices that several sections have, as types of configs."""

from typing import Annotated, Literal

from msgspec import Meta

PositiveInt = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
Schedule = Literal["constant", "linear", "cosine"]
"""What becomes of a learning rate over a run."""
