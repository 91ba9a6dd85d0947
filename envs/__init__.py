"""Environments: what an author subclasses, and what the rest of Moonmill sees of it."""

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.feed import TaskFeed
from moonmill.envs.host import EnvHost, StepResult
from moonmill.envs.marks import metric, reward, stop
from moonmill.envs.taskset import Taskset
from moonmill.envs.tools import ToolSpec, tool

__all__ = [
    "EnvHost",
    "MultiTurnEnv",
    "StepResult",
    "TaskFeed",
    "Taskset",
    "ToolSpec",
    "metric",
    "reward",
    "stop",
    "tool",
]
