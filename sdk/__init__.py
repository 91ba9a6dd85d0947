"""Moonmill: multi-turn environments with tools for language-model agents, and a fully asynchronous trainer.

Importing this package is quick: each name is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moonmill.envs import MultiTurnEnv, Taskset, metric, reward, stop, tool
    from moonmill.errors import ConfigError, MoonmillError
    from moonmill.registry import list_envs, make, register
    from moonmill.sandboxes import SandboxLimits, SandboxSpec
    from moonmill.types import (
        Action,
        Completion,
        Message,
        Observation,
        Rollout,
        Sampling,
        Segment,
        Status,
        StopReason,
        Task,
        Timings,
        ToolCall,
        ToolFault,
    )

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Completion",
    "ConfigError",
    "Message",
    "MoonmillError",
    "MultiTurnEnv",
    "Observation",
    "Rollout",
    "Sampling",
    "SandboxLimits",
    "SandboxSpec",
    "Segment",
    "Status",
    "StopReason",
    "Task",
    "Taskset",
    "Timings",
    "ToolCall",
    "ToolFault",
    "list_envs",
    "make",
    "metric",
    "register",
    "reward",
    "stop",
    "tool",
]

_HOMES = ("moonmill.errors", "moonmill.types", "moonmill.registry", "moonmill.sandboxes", "moonmill.envs")


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in __all__:
        return next(getattr(home, name) for home in map(import_module, _HOMES) if hasattr(home, name))
    raise AttributeError(f"module 'moonmill' has no attribute {name!r}")
