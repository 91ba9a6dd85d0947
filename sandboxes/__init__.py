"""Sandboxes: where what a model writes is run, and stays.

The parts that every provider has in common are here; what a provider needs of the system is imported where it is used.
"""

from moonmill.sandboxes.errors import (
    ExecError,
    ExecTimeoutError,
    OutputLimitExceededError,
    SandboxError,
    SandboxFileError,
    SandboxSpecError,
    SandboxUnavailableError,
)
from moonmill.sandboxes.sandbox import Sandbox, SandboxProvider
from moonmill.sandboxes.types import ExecResult, FileInfo, SandboxLimits, SandboxSpec

__all__ = [
    "ExecError",
    "ExecResult",
    "ExecTimeoutError",
    "FileInfo",
    "OutputLimitExceededError",
    "Sandbox",
    "SandboxError",
    "SandboxFileError",
    "SandboxLimits",
    "SandboxProvider",
    "SandboxSpec",
    "SandboxSpecError",
    "SandboxUnavailableError",
]
