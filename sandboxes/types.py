"""What is asked of a sandbox, and what it answers."""

from typing import TYPE_CHECKING, Annotated, Literal, Self, overload

from msgspec import Meta, Struct

if TYPE_CHECKING:
    from moonmill.envs.base import MultiTurnEnv
    from moonmill.envs.sandbox_handles import BlockingSandbox

PositiveSeconds = Annotated[float, Meta(gt=0)]
MIB = 1 << 20


class SandboxLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all processes of a sandbox may use together. A provider refuses a limit that it cannot enforce."""

    memory_mib: Annotated[int, Meta(ge=32, le=1 << 24)] = 1024
    """Memory, files in memory included. A process over it is killed."""
    pids: Annotated[int, Meta(ge=1, le=1 << 20)] = 128
    """Processes and threads at once."""
    disk_mib: Annotated[int, Meta(ge=1, le=1 << 24)] = 256
    """Size of the files in each place that can be written to."""
    cpus: Annotated[float, Meta(ge=0.01, le=1 << 16)] | None = None
    """Processors' worth of computing, 0.01 or more; None leaves it to the host's scheduler."""
    lifetime: PositiveSeconds = 3600.0
    """Seconds from its opening until it is closed in any case."""


class SandboxSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an environment needs of its sandbox.

    Every sandbox has a folder of its own to work in, `/tmp` and `/dev/shm`; all else is read-only.
    """

    image: str | None = None
    """A container image. None is the provider's own: for `local` the programs of this machine."""
    workdir: str = "/workspace"
    """Where commands run and relative paths begin: an absolute path."""
    files: dict[str, str | bytes] = {}
    """Files that are there from the start, by path."""
    env: dict[str, str] = {}
    """Environment variables of every command. Nothing of the host's environment is ever passed on."""
    user: str | None = None
    """Who runs commands: a name or a uid of the image. None is an unprivileged user."""
    network: Literal["none", "open"] = "none"
    """`none`: the sandbox's own loopback alone. `open`: whatever the host reaches, where the provider has that."""
    limits: SandboxLimits = SandboxLimits()

    if TYPE_CHECKING:
        # An environment's class says what its sandbox is like, its instance has the sandbox: for type checkers alone.
        @overload
        def __get__(self, instance: "MultiTurnEnv", owner: type) -> "BlockingSandbox": ...
        @overload
        def __get__(self, instance: object, owner: type) -> Self: ...
        def __get__(self, instance: object, owner: type) -> "Self | BlockingSandbox": ...
        def __set__(self, instance: object, value: "SandboxSpec | None") -> None: ...


class ExecResult(Struct, frozen=True):
    """How a command ended."""

    returncode: int
    """Its exit status; 128 + n where signal n ended it, as shells count."""
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    """There was more output than `output_limit`; the rest is gone."""
    oom_killed: bool
    """The kernel killed something of the sandbox for its memory meanwhile."""
    duration: float
    """Seconds, measured in the sandbox."""

    @property
    def stdout(self) -> str:
        """As text; what is no UTF-8 is replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """As text; what is no UTF-8 is replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")


class FileInfo(Struct, frozen=True):
    """One entry of a folder."""

    path: str
    """Relative to the folder that was listed."""
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    """Bytes."""
    mode: int
    """Permission bits."""
