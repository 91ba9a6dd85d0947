"""Environments: what an author subclasses, and what the rest of Moonmill sees of it."""

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.feed import TaskFeed
from moonmill.envs.foreign import Endpoint, ForeignEnv, Outcome
from moonmill.envs.host import EnvHost, StepResult
from moonmill.envs.marks import metric, reward, stop
from moonmill.envs.programs import run_program
from moonmill.envs.sandbox_handles import AsyncSandbox, BlockingSandbox
from moonmill.envs.sandbox_service import SandboxService
from moonmill.envs.taskset import Taskset
from moonmill.envs.tools import ToolSpec, tool

__all__ = [
    "AsyncSandbox",
    "BlockingSandbox",
    "Endpoint",
    "EnvHost",
    "ForeignEnv",
    "MultiTurnEnv",
    "Outcome",
    "SandboxService",
    "StepResult",
    "TaskFeed",
    "Taskset",
    "ToolSpec",
    "metric",
    "reward",
    "run_program",
    "stop",
    "tool",
]
