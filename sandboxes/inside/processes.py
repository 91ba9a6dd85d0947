"""The processes of a sandbox, and how they are ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
KILL_SECONDS = 5.0
"""So long it is tried to end processes."""

Processes = dict[int, tuple[int, bytes, bool]]
"""By number: parent, start time, and whether it has ended."""


def all_processes() -> Processes:
    """Those that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/" + name + "/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it has just ended
                continue
            # One whose first thread has ended looks dead while others run: only what has no more threads has ended.
            found[int(name)] = int(fields[1]), fields[19], fields[0] in (b"Z", b"X") and _threads_of(name) <= 1
    return found


def _threads_of(pid: str) -> int:
    try:
        return len(os.listdir("/proc/" + pid + "/task"))
    except OSError:
        return 0


def living(every: Processes) -> dict[int, bytes]:
    """Start times of the processes below this one that have not ended."""
    me = os.getpid()
    found = {}
    for pid, (_, start, has_ended) in every.items():
        # Below a first process is everything, what has come in from another namespace too.
        if pid != me and not has_ended and (me == 1 or _ancestor(pid, every, {me}) == me):
            found[pid] = start
    return found


def started_since(before: dict[int, bytes], others: Iterable[int]) -> set[int]:
    """The living processes that neither were there before, nor descend from those, nor from `others`."""
    every = all_processes()
    spared = {pid for pid, start in before.items() if pid in every and every[pid][1] == start} | {*others}
    return {pid for pid in living(every) if _ancestor(pid, every, spared) not in spared}


def _ancestor(pid: int, every: Processes, among: set[int]) -> int:
    """The nearest of `among` that `pid` is or descends from, or where the search ends."""
    while pid in every and pid not in among:
        pid = every[pid][0]
    return pid


def signal_all_others(number: int) -> None:
    """Send a signal to all there are but this one, which only the first process of a namespace can."""
    if os.getpid() == 1:
        try:
            os.kill(-1, number)
        except OSError:  # there are none
            pass


def kill_all(victims: Callable[[], set[int]], reap: Callable[[], None] = lambda: None) -> bool:
    """Kill until there are no more; returns whether that succeeded.

    What is stopped first can start no others. One that starts another and ends, again and again, may be seen at no time
    in a list that takes time to make: so once there seem to be none, all others are stopped and it is looked again.
    """
    give_up = time.monotonic() + KILL_SECONDS
    has_ended = False
    while not has_ended and time.monotonic() < give_up:
        found = victims()
        if not found:
            signal_all_others(signal.SIGSTOP)
            found = victims()
            has_ended = not found
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                try:
                    os.kill(pid, number)
                except OSError:  # it has just ended
                    pass
        reap()
        signal_all_others(signal.SIGCONT)
        if not has_ended:
            time.sleep(0.001)
    return has_ended


def oom_kills(counter: str) -> int:
    """How many the kernel has killed for their memory, as a control group's file says; 0 without one."""
    try:
        with open(counter, "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), 0)
    except OSError:
        return 0


def prctl(option: int, value: int) -> None:
    """The system call. `import ctypes` would take ten times as long as all of this."""
    import _ctypes

    this_program: Any = None
    _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(this_program, 0), "prctl"), (option, value, 0, 0, 0))
