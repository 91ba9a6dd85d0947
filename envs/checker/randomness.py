"""Random numbers that all of a process share: an episode that draws from them is decided by whatever else does."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from msgspec import Struct

from moonmill.envs.checker.findings import Finding, error, place
from moonmill.envs.checker.subject import Subject, Trace
from moonmill.envs.taskset import Taskset
from moonmill.envs.threads import on_a_thread

_TASKS = 5
_SEEDS = (1, 1, 2)
"""Twice the same: what differs even then is another check's."""
_OWN = "`self.rng`, in `tasks` from `self.task_rng(split)`"


class _Global(Struct, frozen=True):
    """Random numbers of a library that has been imported."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    seed: Callable[[int], Any]
    advice: str

    def state(self) -> Any:
        """What `set` takes, comparable."""
        return self.get()


def _globals() -> list[_Global]:
    found = [_Global("random", random.getstate, random.setstate, random.seed, f"draw from {_OWN}")]
    if numpy := sys.modules.get("numpy"):
        state = numpy.random.get_state
        found.append(
            _Global(
                "numpy",
                lambda: tuple(v.tobytes() if hasattr(v, "tobytes") else v for v in state()),
                lambda kept: numpy.random.set_state((kept[0], numpy.frombuffer(kept[1], "uint32"), *kept[2:])),
                numpy.random.seed,
                "draw from `numpy.random.default_rng(self.rng.getrandbits(63))`, made in `reset`",
            )
        )
    if (torch := sys.modules.get("torch")) and hasattr(torch, "get_rng_state"):
        found.append(
            _Global(
                "torch",
                lambda: torch.get_rng_state().numpy().tobytes(),
                lambda kept: torch.set_rng_state(torch.frombuffer(bytearray(kept), dtype=torch.uint8)),
                torch.manual_seed,
                "give torch's functions a `torch.Generator` that was seeded from `self.rng`",
            )
        )
    return found


async def randomness(subject: Subject) -> list[Finding]:
    """Neither tasks nor episodes draw from the shared random numbers, or depend on them."""
    found, traces = [], []
    used: dict[str, _Global] = {}
    for seed in _SEEDS:
        with _seeded(seed) as sources:
            before = {source.name: source.state() for source in sources}
            await on_a_thread(_first_tasks, subject)
            traces.append(await subject.play(0))
            used |= {source.name: source for source in sources if source.state() != before[source.name]}
    for source in used.values():
        with _seeded(_SEEDS[0]):
            where = await on_a_thread(_culprit, subject, source, traces[-1])
        found.append(
            error(
                f"the random numbers that the whole process shares, those of {source.name}, were drawn from or seeded: "
                "episodes that go on at once disturb each other, and none can be repeated",
                source.advice,
                where=where,
            )
        )
    first, same, other = traces
    if not used and first.difference(same) is None and (parted := first.difference(other)):
        found.append(
            error(
                f"an episode depends on the random numbers that the whole process shares: {parted.where} differs",
                f"draw from {_OWN}",
                where=place(type(subject.env)),
                value=f"{parted.first} with one state of theirs, {parted.second} with another",
            )
        )
    return found


@contextmanager
def _seeded(seed: int) -> Iterator[list[_Global]]:
    sources = _globals()
    before = [source.state() for source in sources]
    for source in sources:
        source.seed(seed)
    try:
        yield sources
    finally:
        for source, state in zip(sources, before, strict=True):
            source.set(state)


def _first_tasks(subject: Subject) -> None:
    split = next(split for split, tasks in subject.tasks.items() if tasks)
    taskset = Taskset(subject.factory, split, subject.seed)
    for index in range(_TASKS):
        taskset.task(index)


def _culprit(subject: Subject, source: _Global, trace: Trace) -> str:
    """The line after which the state was another: what was done before is done again, line by line, by hand."""
    before, last, found = source.state(), "", ""

    def look(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal last, found
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("random", "numpy", "torch"):
            return None  # the line that calls it is wanted
        if source.state() != before:
            found = last
            sys.settrace(None)
            return None
        last = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return look

    sys.settrace(look)
    try:
        _first_tasks(subject)
        env = subject.factory()
        try:
            env.reset(seed=trace.seed, options={"task": trace.task})
            for said, _ in trace.turns:
                env.step(said)
        finally:
            env.close()
    except Exception:
        pass  # what breaks is told by another check
    finally:
        sys.settrace(None)
    return found
