"""What of a sandbox can be seen from the host: its processes, control groups and layers. Nothing of it may stay."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_OCTAL = re.compile(r"\\(\d{3})")


class Traces(Struct, frozen=True):
    """What the host has of the sandboxes in which processes with a marker run."""

    processes: dict[int, str] = {}
    """Start times by process id: those with the marker, and the first of each sandbox."""
    cgroups: tuple[str, ...] = ()
    """Folders of their control groups that are not ours."""
    layers: tuple[str, ...] = ()
    """Folders of the host that hold what is written inside."""

    def processes_left(self) -> list[str]:
        """Which of the processes are still there."""
        return [f"process {pid}" for pid, start in self.processes.items() if _start_of(pid) == start]

    def places_left(self) -> list[str]:
        """Which of the folders are still there."""
        return [folder for folder in (*self.cgroups, *self.layers) if os.path.exists(folder)]


def traces_of(marker: str) -> Traces:
    """What there is of the sandboxes in which processes have `marker` as an argument. Empty where none can be seen."""
    marked = list(marked_processes(marker))
    starts = {pid: start for pid in marked if (start := _start_of(pid)) is not None}
    for pid in marked:
        if (first := first_process(pid)) is not None and (start := _start_of(first)) is not None:
            starts[first] = start
    mounts = _cgroup_mounts()
    ours = set(_cgroups_of("self", mounts))
    theirs = {folder for pid in marked for folder in _cgroups_of(str(pid), mounts)}
    foreign = {folder for folder in theirs if not any(own == folder or own.startswith(f"{folder}/") for own in ours)}
    layers = {layer for pid in marked for layer in layers_of(_mounts_of(str(pid)), _mounts_of("self"))}
    return Traces(starts, tuple(sorted(foreign)), tuple(sorted(layers)))


def marked_processes(marker: str) -> Iterator[int]:
    """The processes of this host that have `marker` as an argument and have not ended."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if marker.encode() in arguments and _start_of(int(entry.name)) is not None:
            yield int(entry.name)


def first_process(pid: int) -> int | None:
    """The process above `pid` that is the first of its namespace, or where there is none the last below ours."""
    ours = os.getpid()
    while pid > 1:
        status = _status_of(pid)
        if not status:
            return None
        namespaces = status.get("NSpid", "").split()
        if len(namespaces) > 1 and namespaces[-1] == "1":
            return pid
        parent = int(status["PPid"])
        if parent == ours:
            return pid
        pid = parent
    return None


def signal_from_outside(marker: str, number: signal.Signals) -> bool:
    """Send the first process of the sandbox in which `marker` runs a signal; returns whether that could be done."""
    firsts = {first for pid in marked_processes(marker) if (first := first_process(pid)) is not None}
    for pid in firsts:
        try:
            os.kill(pid, number)
        except OSError:
            return False
    return bool(firsts)


def kill_marked(marker: str) -> None:
    """Kill the processes of this host that have `marker` as an argument, as far as they are ours to kill."""
    for pid in marked_processes(marker):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def children() -> set[int]:
    """The processes below ours that have not ended."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _status_of(int(entry.name))) and status["State"][0] not in "ZX":
            parents[int(entry.name)] = int(status["PPid"])
    below, found = {os.getpid()}, set[int]()
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        found |= below
    return found


def _start_of(pid: int) -> str | None:
    """When a process was started; None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _status_of(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _cgroup_mounts() -> dict[frozenset[str], str]:
    """Where the control groups are, by their controllers; none in version 2."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split()[4])
            found[frozenset(options.split(",")) if kind == "cgroup" else frozenset()] = place
    return found


def _cgroups_of(pid: str, mounts: dict[frozenset[str], str]) -> Iterator[str]:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        wanted = frozenset(controllers.split(",")) - {""}
        for options, place in mounts.items():
            folder = os.path.normpath(f"{place}/{path}")
            if (wanted <= options if wanted else not options) and os.path.isdir(folder):
                yield folder


def layers_of(theirs: str, ours: str) -> set[str]:
    """Where overlays of a process write to that are its sandbox's.

    Args:
        theirs: its mounts.
        ours: those of this process. One that sees the host's mounts sees the root of each container too, where that is
            mounted; so another root than ours is a sandbox's, and all else only where it is not ours as well.
    """
    own = _layers(ours)
    seen = {layer for _, layer in own}
    return {
        layer for place, layer in _layers(theirs) if layer not in seen or (place == "/" and (place, layer) not in own)
    }


def _layers(mounts: str) -> set[tuple[str, str]]:
    """Places of overlays, and where those write to."""
    found = set()
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        for option in after.rpartition(" ")[2].split(","):
            if option.startswith("upperdir="):
                found.add((before.split()[4], option.removeprefix("upperdir=")))
    return found


def _mounts_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:  # not ours to see
        return ""
