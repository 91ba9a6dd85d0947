r"""What a text gives as its answer, and which answers are compared without math-verify."""

import time
from fractions import Fraction

import pytest

from moonmill.envs.library.math.answers import LONGEST, final_answer, last_boxed, plain_number


@pytest.mark.parametrize(
    ("text", "answer", "in_place"),
    [
        (r"First \boxed{3}, but then \boxed{\frac{1}{2}}.", r"\frac{1}{2}", True),
        (r"\boxed{5} <answer>6</answer> #### 7", "5", True),
        ("<answer> 6 </answer> #### 7\n8", "6", True),
        ("<answer>5</answer> no, <answer>\n6</answer>", "6", True),
        ("3 + 4 = 7\n#### 7\nI hope it helps.", "7", True),
        ("3 + 4 is\nseven, so 7 apples.\n\n", "seven, so 7 apples.", False),
        (r"\boxed{7", "\\boxed{7", False),
        ("#### ", "", True),
        ("", "", False),
        (" \n ", "", False),
        ("1" * (LONGEST + 1), "", False),
    ],
)
def test_where_the_answer_stands(text: str, answer: str, in_place: bool) -> None:
    assert final_answer(text) == (answer, in_place)


def test_a_box_may_hold_braces_or_have_none() -> None:
    assert last_boxed(r"so $\boxed{\{1, {2}\}}$.") == r"\{1, {2}\}"
    assert last_boxed(r"so $x = \boxed 12$.") == "12"
    assert last_boxed(r"so \fbox{a}") == "a"
    assert last_boxed("so 12") is None


@pytest.mark.parametrize("text", [r"\boxed{" * 20_000, "<answer>" * 20_000, "{" * 100_000, "####" * 30_000])
def test_a_hostile_text_takes_no_time(text: str) -> None:
    start = time.perf_counter()
    final_answer(text)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", Fraction(72)),
        (" 72. ", Fraction(72)),
        ("-1,234.50", Fraction(-2469, 2)),
        ("$18", Fraction(18)),
        ("$18$", Fraction(18)),
        (r"\$1,000", Fraction(1000)),
        ("-$5", Fraction(-5)),
        ("0.1", Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("9" * 99, Fraction(10**99 - 1)),
    ],
)
def test_a_plain_number_is_read_exactly(text: str, number: Fraction) -> None:
    assert plain_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "72 apples", "50%", "1/2", "1e3", "1,23", "12,3456", "two", "3 4", r"\frac12", "9" * 200, "٣", "nan"]
)
def test_anything_else_is_none(text: str) -> None:
    assert plain_number(text) is None
