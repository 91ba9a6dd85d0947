"""The paired test, against numbers worked out by hand."""

import itertools

import pytest

from moonmill.trainer import significance
from moonmill.trainer.significance import sign_flip


def test_with_tasks_solved_or_not_it_is_mcnemars_exact_test() -> None:
    # Eight tasks better, two worse: 2 (C(10, 0) + C(10, 1) + C(10, 2)) / 2^10 = 112 / 1024, whatever else is equal.
    assert sign_flip([1.0] * 8 + [-1.0] * 2 + [0.0] * 50) == pytest.approx(112 / 1024)


def test_it_is_exact_also_for_many_tasks() -> None:
    assert sign_flip([1.0] * 30) == pytest.approx(2 / 2**30)
    assert sign_flip([1.0] * 300 + [-1.0] * 300) == 1.0


def test_it_counts_the_signs_of_differences_of_any_size() -> None:
    differences = [0.5, 0.25, -0.1, 0.7, 0.3]
    seen = abs(sum(differences))
    signs = itertools.product((-1, 1), repeat=5)
    as_far = sum(abs(sum(s * d for s, d in zip(flip, differences, strict=True))) >= seen - 1e-9 for flip in signs)
    assert sign_flip(differences) == pytest.approx(as_far / 32)


def test_differences_that_rounding_has_made_unequal_are_equal() -> None:
    third = 1 / 3
    assert sign_flip([third, 2 * third - third, 1 - 2 * third]) == pytest.approx(2 / 8)


def test_no_difference_at_all_is_no_evidence() -> None:
    assert sign_flip([0.0, 0.0]) == 1.0
    assert sign_flip([]) == 1.0


def test_where_there_are_too_many_ways_a_sample_comes_near_and_hangs_from_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    differences = [1.0] * 8 + [-1.0] * 2
    monkeypatch.setattr(significance, "_EXACT", 1)
    assert sign_flip(differences) == pytest.approx(112 / 1024, abs=0.01)
    assert sign_flip(differences, seed=3) == sign_flip(differences, seed=3)
    assert sign_flip([1.0] * 40) == pytest.approx(1 / 10_001)  # never 0
