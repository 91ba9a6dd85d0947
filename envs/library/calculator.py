"""`calculator-v0`: work out a chain of operations with a calculator that does one at a time.

A task of level n is an expression with n operations, `((48+7)*21)-530`, over numbers of two and three digits: more than
a small policy can do in its head, so it must call the tool, read the result, put it into the next call, and at last
answer. What always holds:

- A task depends on nothing but the environment's seed, split and position.
- A task is in the `eval` split if a hash of its expression says so, in `train` otherwise: no seed, level or version can
  make one task appear in both.
- All results on the way are whole numbers from 0 to `LARGEST`.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from moonmill.envs import MultiTurnEnv, metric, reward, tool
from moonmill.envs.library.splits import check_split, checked_levels, split_of
from moonmill.envs.tools import ToolArgumentsError
from moonmill.types import Message, Rollout, Status, Task, ToolCall

LARGEST = 99_999
"""No result on the way is larger: results stay as short as what is calculated with."""
MAX_LEVEL = 4

_OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_CALL = re.compile(r"(-?\d{1,12})([-+*])(-?\d{1,12})", re.ASCII)
"""One operation; the digits are bounded, so that no call is expensive."""
_STEP = re.compile(r"([-+*])(\d+)")
_USAGE = "error: use a+b, a-b or a*b"
_DESCRIPTION = (
    "Work out one operation on two whole numbers. For a longer expression, call this once for each of its operations, "
    "the innermost first, then answer with the number it comes to."
)
"""Stands in for instructions in the prompt: a policy that knows its tool pays no tokens for it."""


class Calculator(MultiTurnEnv):
    """Work out a chain of operations with a calculator that does one at a time.

    Args:
        levels: the numbers of operations that tasks have, from 1 to 4; each is as likely as the others.
    """

    max_turns = 8
    max_seconds = 300.0
    reward_bounds = (0.0, 1.0)

    def __init__(self, levels: Sequence[int] = (1, 2, 3, 4)) -> None:
        self.levels = checked_levels("calculator-v0", levels, MAX_LEVEL)
        self.calls = 0

    def tasks(self, split: str) -> Iterator[Task]:
        check_split("calculator-v0", split)
        rng = self.task_rng(split)
        while True:
            level = rng.choice(self.levels)
            expression, answer = _chain(rng, level)
            if split_of(expression) == split:
                yield Task(expression, answer, level=str(level))

    @tool(description=_DESCRIPTION)
    def calculate(self, expression: str) -> str:
        """Work out one operation on two whole numbers.

        Args:
            expression: one operation, such as 12*34; +, - and * are known
        """
        self.calls += 1
        found = _CALL.fullmatch(expression.replace(" ", ""))
        if found is None:
            raise ToolArgumentsError(_USAGE)
        left, sign, right = found.groups()
        return str(_OPERATIONS[sign](int(left), int(right)))

    @reward
    def correct(self, rollout: Rollout) -> float:
        return float(rollout.status is Status.FINISHED and rollout.final_number() == self.task.answer)

    @metric
    def tool_calls(self, rollout: Rollout) -> float:
        return float(self.calls)


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next: a script for a `ScriptedAgent`, and what a policy can be warmed up on.

    Args:
        messages: the conversation so far, from the prompt on. Calls that failed or lead elsewhere are passed over.
    """
    results = {m.tool_call_id: m.content for m in messages if m.role == "tool"}
    seen = {(_expression(call), results.get(call.id)) for m in messages for call in m.tool_calls}
    task = next(m.content for m in messages if m.role == "user")
    result = int(re.findall(r"\d+", task)[0])
    for sign, operand in _STEP.findall(task):
        expression = f"{result}{sign}{operand}"
        result = _OPERATIONS[sign](result, int(operand))
        if (expression, str(result)) not in seen:
            call = ToolCall(f"call-{len(messages)}", "calculate", {"expression": expression})
            return Message("assistant", tool_calls=(call,))
    return Message("assistant", str(result))


def _expression(call: ToolCall) -> Any:
    return call.arguments.get("expression") if isinstance(call.arguments, dict) else None


def _chain(rng: Random, level: int) -> tuple[str, int]:
    """An expression with `level` operations, and its value."""
    result = _number(rng)
    text = str(result)
    for index in range(level):
        sign, operand, result = _next_step(rng, result)
        text = f"({text}){sign}{operand}" if index else f"{text}{sign}{operand}"
    return text, result


def _next_step(rng: Random, result: int) -> tuple[str, int, int]:
    """An operation on `result` that stays in bounds: sign, operand and what comes out."""
    while True:
        sign, operand = rng.choice("+-*"), _number(rng)
        outcome = _OPERATIONS[sign](result, operand)
        if 0 <= outcome <= LARGEST:
            return sign, operand, outcome


def _number(rng: Random) -> int:
    return rng.randint(10, 99) if rng.random() < 0.5 else rng.randint(100, 999)
