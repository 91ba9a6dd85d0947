"""Promise 3 at points drawn over many short runs: `make crash-test` has all of them, the suite a few."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import CRASH_POINTS
from tests.integration.crash_points import Life

POINTS_A_LIFE = 3
POINTS = int(os.environ.get("MOONMILL_CRASH_POINTS", "6"))
SEED = int(os.environ.get("MOONMILL_CRASH_SEED", "0"))


@pytest.mark.parametrize("seed", range(SEED, SEED + -(-POINTS // POINTS_A_LIFE)))
def test_whatever_is_killed_whenever_nothing_is_lost_and_nothing_counted_twice(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    life = Life(tmp_path, seed, POINTS_A_LIFE)
    try:
        life.live()
        life.check()
    finally:
        record_property(CRASH_POINTS, [f"{seed:4}  {outcome}" for outcome in life.outcomes])
