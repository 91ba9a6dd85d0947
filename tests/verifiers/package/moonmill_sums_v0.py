"""Arithmetic with a calculator, in the first API of verifiers."""

import operator
import re

import verifiers as vf
from datasets import Dataset

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calculate(expression: str) -> str:
    """Work out one operation.

    Args:
        expression: such as 12+30
    """
    a, sign, b = re.fullmatch(r"\(?(-?\d+)\)?([-+*])(\d+)", expression).groups()
    return str(OPERATIONS[sign](int(a), int(b)))


class Sums(vf.ToolEnv):
    async def add_trajectory_step(self, state, trajectory_step) -> None:
        trajectory_step["reward"] = 0.25
        await super().add_trajectory_step(state, trajectory_step)


def load_environment(size: int = 40, scoring: str = "exact") -> vf.Environment:
    def exact(completion, answer) -> float:
        if scoring == "broken":
            raise ValueError("the scorer is broken")
        last = completion[-1]
        found = re.findall(r"-?\d+", (last.get("content") if isinstance(last, dict) else last.content) or "")
        return float(bool(found) and found[-1] == answer)

    rows = [{"question": f"{10 + i}+{90 - i}", "answer": "100"} for i in range(size)]
    return Sums(dataset=Dataset.from_list(rows), tools=[calculate], rubric=vf.Rubric(funcs=[exact]), max_turns=4)
