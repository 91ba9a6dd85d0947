"""Run by bench_verifiers.py in a Python environment that has GEM (`gem-llm`): the same episodes in its environments.

    python tests/benchmarks/gem_alone.py EPISODES

GEM has environments and wrappers and no runner of episodes: one is stepped after the other in this process, by a loop
that keeps nothing of them, and the model is a function.
"""

import json
import random
import re
import resource
import sys
import time
from typing import Any

from gem.core import Env
from gem.tools.base_tool import BaseTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper

CALL, ANSWER = re.compile(r"<calculate>(.*?)</calculate>"), re.compile(r"-?\d+$")


class Sums(Env):
    """A sum to find."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed)
        a, b = random.Random(seed).choices(range(100), k=2)
        self.answer = a + b
        return f"{a}+{b}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        found = ANSWER.search(action)
        return "", float(found is not None and int(found[0]) == self.answer), True, False, {}


class Calculator(BaseTool):
    """Adds."""

    tool_type = "calculate"

    def instruction_string(self) -> str:
        return "Write <calculate>1+2</calculate> to have a sum worked out."

    def execute_action(self, action: str) -> tuple[bool, bool, str, str]:
        call = CALL.search(action)
        if call is None:
            return False, True, "", ""
        return True, False, str(sum(map(int, call[1].split("+")))), call[0]


def main(episodes: int) -> None:
    """Play, and print seconds by the wall clock and of CPU."""
    env = ToolEnvWrapper(Sums(), [Calculator()])
    wall, cpu = time.perf_counter(), seconds()
    rewards = [play(env, seed) for seed in range(episodes)]
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": seconds() - cpu}))
    assert set(rewards) == {1.0}


def play(env: Any, seed: int) -> float:
    """One episode."""
    prompt, _ = env.reset(seed=seed)
    said = f"<calculate>{prompt.splitlines()[0]}</calculate>"
    while True:
        observation, reward, terminated, truncated, _ = env.step(said)
        if terminated or truncated:
            return float(reward)
        said = f"It is {observation}"


def seconds() -> float:
    """Of CPU, in this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(int(sys.argv[1]))
