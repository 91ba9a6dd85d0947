"""A case of the self-check: one promise, and a function that returns where it holds."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from moonmill.sandboxes.sandbox import Sandbox
    from moonmill.sandboxes.testing.lab import Lab

Status = Literal["holds", "broken", "not enforced", "not shown"]
"""`not enforced`: the provider does not claim it here. `not shown`: this host or image has not what the case needs."""

PROMISES = {
    "memory": "memory has a limit, and it is told when a process was killed for it",
    "memory of all": "the memory of all processes counts together",
    "pids": "the number of processes and threads has a limit",
    "disk": "the files in each place that can be written to have a limit",
    "cpus": "computing has a limit where one is asked for",
    "network": "there is no network but the sandbox's own loopback",
    "files": "the host's files are neither seen nor changed, nor another sandbox's; what can be seen is read-only",
    "processes": "other processes, the supervisor included, are neither seen, read, traced nor ended",
    "secrets": "nothing of the host's environment is in any environment inside",
    "user": "commands have no privileges and gain none",
    "system calls": "those that open the kernel to attacks are refused",
}
"""What a provider may claim in `enforces()`, by the names it uses there. All else is to hold with every provider."""

DEFAULT_SECONDS = 30.0


class BrokenPromiseError(Exception):
    """What was promised does not hold: in what way."""


class NotShownError(Exception):
    """Whether it holds cannot be seen here: why."""


class Case(Struct, frozen=True):
    """One promise of a sandbox, and how it is checked."""

    name: str
    """`topic/name`."""
    topic: str
    statement: str
    """The promise, in a sentence."""
    check: "Callable[[Lab], Awaitable[None]]"
    """Returns where it holds; raises `BrokenPromiseError`, `NotShownError` or anything else where it does not."""
    promise: str | None = None
    """The name in `PROMISES`, or None where it is to hold with every provider."""
    seconds: float = DEFAULT_SECONDS
    """So long it may take."""


class Outcome(Struct, frozen=True):
    """What became of a case."""

    name: str
    topic: str
    statement: str
    promise: str | None
    status: Status
    detail: str = ""
    """In what way it is broken, or why it could not be shown."""
    seconds: float = 0.0


class Topic:
    """The cases about one thing, in their order. A case is named after its function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases: list[Case] = []

    def inside(
        self, statement: str, *, promise: str | None = None, seconds: float = DEFAULT_SECONDS
    ) -> "Callable[[Callable[[Sandbox], Awaitable[None]]], Callable[[Sandbox], Awaitable[None]]]":
        """A case that is given a sandbox. Others have used it before, and use it afterwards."""

        def add(function: "Callable[[Sandbox], Awaitable[None]]") -> "Callable[[Sandbox], Awaitable[None]]":
            async def check(lab: "Lab") -> None:
                await function(await lab.sandbox())

            self._add(function.__name__, statement, check, promise, seconds)
            return function

        return add

    def around(
        self, statement: str, *, promise: str | None = None, seconds: float = DEFAULT_SECONDS
    ) -> "Callable[[Callable[[Lab], Awaitable[None]]], Callable[[Lab], Awaitable[None]]]":
        """A case that is given the lab: several sandboxes, or the host around them."""

        def add(function: "Callable[[Lab], Awaitable[None]]") -> "Callable[[Lab], Awaitable[None]]":
            self._add(function.__name__, statement, function, promise, seconds)
            return function

        return add

    def _add(
        self,
        name: str,
        statement: str,
        check: "Callable[[Lab], Awaitable[None]]",
        promise: str | None,
        seconds: float,
    ) -> None:
        assert promise is None or promise in PROMISES, promise
        self.cases.append(Case(f"{self.name}/{name.replace('_', '-')}", self.name, statement, check, promise, seconds))
