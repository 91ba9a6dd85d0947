"""Other weights on the engine than in the learner are told once."""

import pytest

from moonmill.trainer.mismatch import MismatchWatch


@pytest.mark.parametrize(("dtype", "rounding", "other"), [("float32", 1e-3, 0.4), ("bfloat16", 0.5, 10.5)])
def test_what_is_no_rounding_is_told_once(dtype: str, rounding: float, other: float) -> None:
    watch = MismatchWatch(dtype)
    assert watch.see(1, {"mismatch_max": rounding}) is None
    assert watch.see(2, {}) is None
    told = watch.see(3, {"mismatch_max": other})
    assert told is not None
    assert told.startswith(f"step 3: engine and learner are {other:g} apart")
    assert watch.see(4, {"mismatch_max": other}) is None
