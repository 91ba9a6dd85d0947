"""Whose a container is: told by labels, so that what a dead process has left can be told from what is in use.

A process is named by its number and start time, which together are used once, and by the place where the number holds:
this boot of this machine, and this PID namespace. Of a process elsewhere nothing can be said, so nothing is done.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

LABEL = "moonmill.sandbox"
"""On everything of ours; its value is the id of the provider that has made it."""
_PLACE = "moonmill.place"
_OWNER = "moonmill.owner"


def labels(provider: str) -> dict[str, str]:
    """What is put on a container of this process."""
    return {LABEL: provider, _PLACE: _place(), _OWNER: f"{os.getpid()}/{_start_time(os.getpid())}"}


def is_left_behind(found: Mapping[str, str]) -> bool:
    """Whether a container with these labels is of a process that was here and is no more."""
    if LABEL not in found or found.get(_PLACE) != _place():
        return False
    number, _, start = found.get(_OWNER, "").partition("/")
    if not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)  # tells of processes that /proc hides from us too
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    now = _start_time(int(number))
    return now not in (start, "")


@cache
def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _start_time(pid: int) -> str:
    """In clock ticks since boot; empty where it cannot be seen, and something else where the process is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if fields[0] not in "ZX" else "ended"
