"""Moonmill: multi-turn environments with tools for language-model agents, and a fully asynchronous trainer.

Importing this package is quick: what stands in other packages of ours is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moonmill.errors import ConfigError, MoonmillError
from moonmill.registry import list_envs, make, register
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

if TYPE_CHECKING:
    from moonmill.envs import MultiTurnEnv, Taskset, metric, reward, stop, tool

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

_FROM_ENVS = frozenset({"MultiTurnEnv", "Taskset", "metric", "reward", "stop", "tool"})


def __getattr__(name: str) -> Any:
    if name in _FROM_ENVS:
        return getattr(import_module("moonmill.envs"), name)
    raise AttributeError(f"module 'moonmill' has no attribute {name!r}")
