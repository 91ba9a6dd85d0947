"""The figures of an evaluation, against numbers worked out by hand."""

import itertools
from statistics import fmean

import pytest

from moonmill.trainer.estimates import bootstrap, pass_at_k, wilson


@pytest.mark.parametrize(
    ("samples", "successes", "k", "chance"),
    [
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6
        (5, 2, 3, 9 / 10),  # 1 - C(3, 3) / C(5, 3) = 1 - 1 / 10
        (4, 3, 2, 1.0),  # two of four cannot avoid three
        (4, 0, 4, 0.0),
        (4, 4, 1, 1.0),
        (200, 1, 100, 1 / 2),
    ],
)
def test_pass_at_k_is_the_chance_that_one_of_k_is_a_success(
    samples: int, successes: int, k: int, chance: float
) -> None:
    assert pass_at_k(samples, successes, k) == pytest.approx(chance)


def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_hold_a_success() -> None:
    outcomes = [True, True, False, False, False, False]
    choices = list(itertools.combinations(outcomes, 3))
    assert pass_at_k(6, 2, 3) == pytest.approx(fmean(any(choice) for choice in choices))


def test_fewer_samples_than_k_give_no_estimate() -> None:
    assert pass_at_k(3, 3, 4) is None
    assert pass_at_k(0, 0, 1) is None


def test_a_bootstrap_is_about_the_normal_interval_of_a_mean() -> None:
    low, high = bootstrap([0.0, 1.0] * 200)  # 0.5 ± 1.96 · 0.5 / 20
    assert low == pytest.approx(0.451, abs=0.01)
    assert high == pytest.approx(0.549, abs=0.01)


def test_a_bootstrap_hangs_from_its_seed() -> None:
    values = [number**0.5 for number in range(50)]
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1)
    assert bootstrap(values, seed=1) != bootstrap(values, seed=2)


def test_a_bootstrap_of_equal_values_has_no_width() -> None:
    assert bootstrap([0.25, 0.25, 0.25]) == (0.25, 0.25)


def test_wilsons_interval_of_none_of_100_is_not_nothing() -> None:
    assert wilson(0, 100) == pytest.approx((0.0, 0.03699), abs=1e-5)
    assert wilson(50, 100) == pytest.approx((0.40383, 0.59617), abs=1e-5)
    assert wilson(0, 0) == (0.0, 1.0)
    assert all(wilson(0, n)[0] == 0.0 and wilson(n, n)[1] == 1.0 for n in range(1, 50))
