"""Limits are checked where they are set."""

import math
from typing import Any

import anyio
import pytest

from moonmill import Message
from moonmill.envs import EnvHost
from moonmill.errors import EnvCodeError
from tests.envs.parts import TASK, OneTask


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_turns", 0, "0, but should be a whole number of at least 1"),
        ("max_turns", 2.5, "2.5, but should be a whole number"),
        ("max_turns", True, "True, but should be a whole number"),
        ("max_tokens", -1, "-1, but should be a whole number of at least 1, or None"),
        ("max_seconds", "3", "'3', but should be a number above 0"),
        ("max_scoring_seconds", 0, "0, but should be a number above 0"),
        ("max_task_seconds", math.nan, "nan, but should be a number above 0"),
        ("max_answer_chars", 0, "0, but should be a whole number of at least 1, or None"),
        ("reward_bounds", (1, 0), r"\(1, 0\), but should be two numbers, the lower first"),
        ("reward_bounds", 1.0, "1.0, but should be two numbers"),
        ("system_prompt", 7, "7, but should be a text, or None"),
    ],
)
def test_a_limit_that_is_none_is_refused_in_the_class_and_in_the_instance(name: str, value: Any, words: str) -> None:
    with pytest.raises(EnvCodeError, match=f"^Env.{name} is {words}"):
        type("Env", (OneTask,), {name: value})

    class Env(OneTask):
        def __init__(self) -> None:
            setattr(self, name, value)

    async def main() -> None:
        async with EnvHost(Env, "test-v0"):
            pass

    with pytest.raises(EnvCodeError, match=f"^Env.{name} is {words}"):
        anyio.run(main)


def test_a_name_that_is_almost_a_limits_is_refused() -> None:
    with pytest.raises(EnvCodeError, match=r"^Env.max_turn: there is no such limit; did you mean max_turns\?"):
        type("Env", (OneTask,), {"max_turn": 3})


def test_limits_may_be_properties_and_names_of_ones_own() -> None:
    class Env(OneTask):
        max_tokens = None
        max_seconds = 5
        max_price = 10
        reward_bounds = (-1, 1)

        @property
        def max_turns(self) -> int:  # type: ignore[override]
            return 2

    async def main() -> None:
        async with EnvHost(Env, "test-v0") as hosted:
            await hosted.reset(TASK, 0)
            assert hosted.limits.max_turns == 2
            assert (await hosted.step(Message("assistant", "x"))).terminated

    anyio.run(main)
