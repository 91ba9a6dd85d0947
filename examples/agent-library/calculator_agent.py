"""The calculator's tasks, played by an agent of Pydantic AI: its loop, its tools, its errors; our model behind it."""

import re
from collections.abc import Iterator

from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from moonmill import Rollout, Status, Task, reward
from moonmill.envs import Endpoint, ForeignEnv, Outcome
from moonmill.envs.library.calculator import Calculator

REQUESTS = 8


def calculate(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: one operation, such as 12*34; +, - and * are known
    """
    found = re.fullmatch(r"(-?\d{1,12})([-+*])(-?\d{1,12})", expression.replace(" ", ""), re.ASCII)
    if found is None:
        return "error: use a+b, a-b or a*b"
    left, sign, right = int(found[1]), found[2], int(found[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[sign])


class CalculatorAgent(ForeignEnv):
    """Work out a chain of operations, with an agent of Pydantic AI and a calculator as its tool."""

    max_seconds = 120.0
    reward_bounds = (0.0, 1.0)

    def tasks(self, split: str) -> Iterator[Task]:
        calculator = Calculator()
        calculator.taskset_seed = self.taskset_seed
        return calculator.tasks(split)

    async def play(self, task: Task, model: Endpoint, seed: int) -> Outcome | None:
        provider = OpenAIProvider(base_url=model.url, api_key=model.key)
        agent = Agent(OpenAIChatModel(model.model, provider=provider), tools=[calculate])
        try:
            await agent.run(str(task.prompt), usage_limits=UsageLimits(request_limit=REQUESTS))
        except (UsageLimitExceeded, UnexpectedModelBehavior):  # what the model is to blame for
            return Outcome(truncated=True)
        return None

    @reward
    def correct(self, rollout: Rollout) -> float:
        return float(rollout.status is Status.FINISHED and rollout.final_number() == self.task.answer)
