"""What an episode leaves behind once it is closed: a run has thousands of them."""

import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import anyio

from moonmill.envs.checker.findings import Finding, error, place
from moonmill.envs.checker.subject import Subject

_EPISODES = 3
"""What grows by at least one an episode is no accident."""
_SETTLE_SECONDS = 1.0
"""What is ending may take so long: a thread its last line, a process its exit."""
_POLL_SECONDS = 0.05
_OURS = ("moonmill", "AnyIO", "asyncio_", "MainThread")
"""Threads that are kept for the next episode."""
_ADVICE = {
    "threads": "end them in `close`, or use a pool that all episodes share",
    "open files, sockets or pipes": "close them in `close`, or use `with`",
    "processes": "end them in `close`, and wait for them",
    "files": "remove them in `close`, or make them in a `tempfile.TemporaryDirectory` that `close` cleans up",
}


async def leaks(subject: Subject) -> list[Finding]:
    """Threads, open files, processes and files do not grow with the number of episodes."""
    await subject.play(0)  # what is made once, and kept, is made here
    before = _left()
    with _watching_files() as made:
        for _ in range(_EPISODES):
            await subject.play(0)
    grown = await _settled(before, made)
    return [
        error(
            f"{len(names)} {kind} are left after {_EPISODES} episodes that were closed",
            _ADVICE[kind],
            where=place(type(subject.env)),
            value=", ".join(names[:_EPISODES]),
        )
        for kind, names in grown.items()
    ]


async def _settled(before: dict[str, Counter[str]], made: Collection[str]) -> dict[str, list[str]]:
    """What is still there when what is ending has ended."""
    end = time.monotonic() + _SETTLE_SECONDS
    grown = _grown(before, made)
    while grown and time.monotonic() < end:
        await anyio.sleep(_POLL_SECONDS)
        grown = _grown(before, made)
    return grown


def _grown(before: dict[str, Counter[str]], made: Collection[str]) -> dict[str, list[str]]:
    now = _left() | {"files": Counter(path for path in made if os.path.exists(path))}
    more = {kind: [*(names - before.get(kind, Counter())).elements()] for kind, names in now.items()}
    return {kind: names for kind, names in more.items() if len(names) >= _EPISODES}


def _left() -> dict[str, Counter[str]]:
    gc.collect()
    threads = (t for t in threading.enumerate() if not t.name.startswith(_OURS))
    return {
        "threads": Counter(f"{t.name} {t.ident}" for t in threads),
        "open files, sockets or pipes": Counter(_descriptors()),
        "processes": Counter(_children()),
    }


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, as that of this list
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _children() -> list[str]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # ended meanwhile
            pids = (task / "children").read_text().split()
            found += [f"{Path(f'/proc/{pid}/comm').read_text().strip()} {pid}" for pid in pids]
    return found


_made: set[str] | None = None
"""Where the hook below puts files and folders that are made; None where nobody wants to know."""


@contextmanager
def _watching_files() -> Iterator[set[str]]:
    """Which files and folders are made meanwhile, wherever that is; those of a sandbox's provider are not told."""
    global _made
    made: set[str] = set()
    _hook()
    _made = made
    try:
        yield made
    finally:
        _made = None


@cache
def _hook() -> None:
    sys.addaudithook(_hear)  # for as long as the process lives


def _hear(event: str, args: tuple[object, ...]) -> None:
    made = _made
    if made is None or event not in ("open", "os.mkdir"):
        return
    path = args[0]
    if threading.current_thread().name == "moonmill-sandboxes" or not isinstance(path, str | bytes | os.PathLike):
        return
    if event == "open" and not (isinstance(args[2], int) and args[2] & os.O_CREAT):
        return
    name = os.path.abspath(os.fsdecode(path))
    if not os.path.exists(name):
        made.add(name)
