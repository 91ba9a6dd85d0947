"""What can go wrong with a sandbox.

Only `SandboxUnavailableError` and `SandboxSpecError` are errors of ours in the sense of promise 4: they pass through a
tool and fail the rollout. The others tell of what was asked for, mostly by a model: raised in a tool, they become its
answer.
"""

from typing import Literal

from moonmill.errors import ConfigError, MoonmillError


class SandboxError(Exception):
    """Base of all of them."""


class SandboxUnavailableError(SandboxError, MoonmillError):
    """The sandbox is gone or cannot be had: an infrastructure failure, never an answer for a model."""


class SandboxSpecError(SandboxError, ConfigError):
    """A `SandboxSpec` asks for what a provider does not have or cannot enforce on this host."""


class ExecError(SandboxError):
    """A command could not be started: no such program, folder or user, or an argument that no program can be given."""


class ExecTimeoutError(SandboxError, TimeoutError):
    """A command ran into its time-out. It and all it has started are gone; its output so far is here."""

    def __init__(self, message: str, stdout: bytes, stderr: bytes, timeout: float, truncated: bool) -> None:
        super().__init__(message)
        self.stdout_bytes = stdout
        self.stderr_bytes = stderr
        self.timeout = timeout
        self.truncated = truncated

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


class OutputLimitExceededError(SandboxError):
    """More came than was to be taken: a file or folder larger than the `limit` it was read with."""


FileProblem = Literal[
    "not_found",
    "is_a_directory",
    "not_a_directory",
    "not_a_file",
    "permission",
    "no_space",
    "no_processes",
    "read_only",
    "invalid",
]


class SandboxFileError(SandboxError):
    """A file in the sandbox could not be read, written or listed.

    Args:
        path: as it was asked for.
        problem: what is wrong with it.
        detail: more words.
    """

    def __init__(self, path: str, problem: FileProblem, detail: str = "") -> None:
        super().__init__(f"{path}: {detail or problem.replace('_', ' ')}")
        self.path = path
        self.problem = problem
