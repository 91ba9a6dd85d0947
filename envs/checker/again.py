"""The same environment in another process, where sets have another order: `python -m moonmill.envs.checker.again`."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
from msgspec import Struct

from moonmill.config import SandboxConfig
from moonmill.envs.checker.findings import Finding, error, place
from moonmill.envs.checker.subject import SPLITS, Subject, as_recorded
from moonmill.envs.differences import Event, first_difference
from moonmill.envs.sandbox_service import SandboxService
from moonmill.errors import RegistryError
from moonmill.registry import make
from moonmill.types import Task

_SECONDS = 120.0
_TASKS = 10
"""Of each split, that are compared."""
_UNKNOWN = 3
"""Exit code where the environment is known to this process alone."""


class _Wanted(Struct, frozen=True):
    env_id: str
    arguments: Mapping[str, Any]
    seed: int
    sandbox: SandboxConfig


class _Seen(Struct, frozen=True):
    tasks: dict[str, list[Task]]
    events: list[Event]


async def another_process(subject: Subject) -> list[Finding]:
    """The same tasks and the same episode in another process."""
    if subject.again is None:
        return []
    wanted = _Wanted(*subject.again, subject.seed, SandboxService.current().config)
    done = None
    with anyio.move_on_after(_SECONDS):
        done = await anyio.run_process(
            [sys.executable, "-m", __name__],
            input=msgspec.json.encode(wanted),
            check=False,
            env={**os.environ, "PYTHONHASHSEED": "20"},
        )
    advice = "see what it prints with `moonmill envs show`; a run that is resumed is another process"
    if done is None:
        return [error(f"in another process it took longer than {_SECONDS:g} s", advice)]
    if done.returncode == _UNKNOWN:
        return []
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return [error("it works here, and not in another process", advice, value="".join(last))]
    seen = msgspec.json.decode(done.stdout, type=_Seen)
    here, there = [*(await subject.play(0)).events], [*seen.events]
    for split in reversed(SPLITS):  # a busy machine may have made fewer in their time
        both = [*zip(subject.tasks.get(split, ()), seen.tasks.get(split, ()), strict=False)]
        here = [*(_event(task) for task, _ in both), *here]
        there = [*(_event(task) for _, task in both), *there]
    if parted := first_difference(here, there):
        return [
            error(
                f"another process makes another {'task' if parted.where.startswith('task') else 'episode'}: "
                f"{parted.where} differs",
                "sort what comes from a set, and use no `hash()` of a text: both differ from process to process",
                where=place(type(subject.env)),
                value=f"{parted.first} here, {parted.second} there",
            )
        ]
    return []


def _event(task: Task) -> Event:
    return f"task {task.id}", msgspec.json.encode(as_recorded(task), order="deterministic").decode()


def main() -> None:
    """Play what stdin asks for; only the result goes to stdout."""
    out = os.dup(1)
    os.dup2(2, 1)
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=_Wanted)
    factory = partial(make, wanted.env_id, **wanted.arguments)
    try:
        factory()
    except RegistryError:
        sys.exit(_UNKNOWN)
    with SandboxService(wanted.sandbox):
        seen = anyio.run(_look, Subject(wanted.env_id, factory, wanted.seed, None))
    with open(out, "wb") as stream:
        stream.write(msgspec.json.encode(seen))


async def _look(subject: Subject) -> _Seen:
    for split in SPLITS:
        subject.tasks[split] = await subject.fetch(split, _TASKS)
    return _Seen(subject.tasks, (await subject.play(0)).events)


if __name__ == "__main__":
    main()
