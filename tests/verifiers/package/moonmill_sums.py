"""Arithmetic with a calculator, in the second API of verifiers. Also what can go wrong in an environment."""

import asyncio
import operator
import re
import time
from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["Sums"]
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Counts(vf.State):
    calls: int = 0


class Sum(vf.TaskData):
    answer: int
    scoring: str = "exact"
    """`slow` outlasts its time-out, `broken` raises."""


class CalculatorConfig(vf.ToolsetConfig):
    pass


class Calculator(vf.Toolset[CalculatorConfig, Counts]):
    TOOL_PREFIX = None

    async def setup_task(self, task: Sum) -> None:
        self.answer = task.answer

    @vf.tool
    def calculate(self, expression: str) -> str:
        """Work out one operation."""
        self.state.calls += 1
        if expression == "sleep":
            time.sleep(1.0)
        a, sign, b = re.fullmatch(r"\(?(-?\d+)\)?([-+*])(\d+)", expression).groups()
        return str(OPERATIONS[sign](int(a), int(b)))


class SumTaskConfig(vf.TaskConfig):
    calculator: CalculatorConfig = CalculatorConfig()


class SumTask(vf.Task[Sum, Counts, SumTaskConfig]):
    @classmethod
    def toolsets(cls, config: SumTaskConfig) -> list[vf.Toolset]:
        return [Calculator(config.calculator)]

    @vf.reward(weight=2.0)
    async def exact(self, trace: vf.Trace) -> float:
        if self.data.scoring == "slow":
            await asyncio.sleep(60)
        if self.data.scoring == "broken":
            raise ValueError("the scorer is broken")
        found = re.findall(r"-?\d+", trace.last_reply)
        return float(bool(found) and int(found[-1]) == self.data.answer) / 2

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(trace.state.calls)


class SumsConfig(vf.TasksetConfig):
    task: SumTaskConfig = SumTaskConfig()
    size: int = 40


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterable[SumTask]:
        for i in range(self.config.size):
            a, b = 10 + i % 80, 90 - i % 80
            yield SumTask(Sum(prompt=f"{a}+{b}", answer=a + b, name=f"sum-{i}"), self.config.task)
        for scoring in ("slow", "broken"):
            data = Sum(prompt="1+1", answer=2, name=scoring, scoring=scoring, timeout=vf.TaskTimeout(scoring=0.2))
            yield SumTask(data, self.config.task)


if __name__ == "__main__":  # so verifiers starts a toolset in a process of its own
    Calculator.run()
