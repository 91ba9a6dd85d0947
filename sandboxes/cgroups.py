"""Limits for all processes of a sandbox together, by control groups: version 2 where it is ours to use, else version 1.

Our groups stand in one folder of the hierarchy and are called `moonmill-<our pid>-<our start>-<number>`. Those of a
process that has been killed are removed by the next one that looks.
"""

import itertools
import os
import re
from contextlib import suppress
from pathlib import Path

import anyio

from moonmill.sandboxes.types import MIB, SandboxLimits

_ROOT = Path("/sys/fs/cgroup")
_NAME = re.compile(r"moonmill-([0-9]+)-([0-9]+)-[0-9]+")
_numbers = itertools.count(1)
"""For the names of groups: there may be several providers in one process."""
_REMOVE_ATTEMPTS = 100
_PERIOD = 100_000
"""Microseconds over which a share of the processors is counted."""


class Group:
    """The control group of one sandbox: one folder in version 2, one for each controller in version 1."""

    def __init__(self, folders: dict[str, Path], version: int) -> None:
        self._folders = folders
        self._version = version

    def limit(self, limits: SandboxLimits) -> None:
        """Make the folders, with these limits. Raises `OSError` where that is not allowed."""
        for folder in {*self._folders.values()}:
            folder.mkdir()
        memory = self._folders["memory"]
        if self._version == 2:
            (memory / "memory.max").write_text(str(limits.memory_mib * MIB))
            _write_if_there(memory / "memory.swap.max", "0")
            if limits.cpus is not None:
                (memory / "cpu.max").write_text(f"{int(limits.cpus * _PERIOD)} {_PERIOD}")
            return
        (memory / "memory.limit_in_bytes").write_text(str(limits.memory_mib * MIB))
        _write_if_there(memory / "memory.memsw.limit_in_bytes", str(limits.memory_mib * MIB))
        if limits.cpus is not None:
            (self._folders["cpu"] / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (self._folders["cpu"] / "cpu.cfs_quota_us").write_text(str(int(limits.cpus * _PERIOD)))

    def add(self, pid: int) -> None:
        """Take a process in, and with it what it will start."""
        for folder in {*self._folders.values()}:
            (folder / "cgroup.procs").write_text(str(pid))

    def oom_kills(self) -> int:
        """How many processes the kernel has killed here for their memory."""
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        fields = dict(line.split() for line in (self._folders["memory"] / name).read_text().splitlines())
        return int(fields.get("oom_kill", 0))

    async def remove(self) -> None:
        """Remove the folders, once their last process is gone."""
        for folder in {*self._folders.values()}:
            for attempt in range(_REMOVE_ATTEMPTS):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # it is busy: the kernel has not finished with the last process
                    await anyio.sleep(min(0.001 * 2**attempt, 0.1))


class Groups:
    """Makes control groups below the folders that are ours to use."""

    def __init__(self, parents: dict[str, Path], version: int) -> None:
        self._parents = parents
        self.version = version

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(self._parents)

    def new(self) -> Group:
        """A group that is not there yet."""
        name = f"moonmill-{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"
        return Group({controller: parent / name for controller, parent in self._parents.items()}, self.version)

    def sweep(self) -> None:
        """Remove the groups of processes that are no more."""
        for parent in {*self._parents.values()}:
            for folder in parent.iterdir():
                owner = _NAME.fullmatch(folder.name)
                if owner and _started(int(owner[1])) != owner[2]:
                    with suppress(OSError):
                        folder.rmdir()


def find() -> Groups | None:
    """Where we may make control groups that limit memory; None where we may not."""
    groups = _version_1() or _version_2()
    if groups is None:
        return None
    trial = groups.new()
    try:
        trial.limit(SandboxLimits())
    except OSError:
        return None
    finally:
        for folder in {*trial._folders.values()}:
            with suppress(OSError):
                folder.rmdir()
    groups.sweep()
    return groups


def _started(pid: int) -> str:
    """When a process was started, which tells it from another one of the same number; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _own() -> dict[str, str]:
    """The path of our group for each controller; for version 2 under an empty name."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return {controller: path for _, controllers, path in lines for controller in controllers.split(",")}


def _version_1() -> Groups | None:
    own, parents = _own(), dict[str, Path]()
    for controller in ("memory", "cpu"):
        folder = _ROOT / controller / own.get(controller, "/").lstrip("/")
        if controller in own and os.access(folder, os.W_OK):
            parents[controller] = folder
    return Groups(parents, 1) if "memory" in parents else None


def _version_2() -> Groups | None:
    """Below the root, where we are its root's; else below our own group, if it was delegated to us."""
    own = _own().get("")
    if own is None:
        return None
    if _offers(_ROOT) and os.access(_ROOT, os.W_OK):
        return Groups(dict.fromkeys(_offered(_ROOT), _ROOT), 2)
    folder = _ROOT / own.lstrip("/")
    if not os.access(folder / "cgroup.procs", os.W_OK) or not os.access(folder, os.W_OK):
        return None
    try:
        _make_room(folder)
    except OSError:
        return None
    return Groups(dict.fromkeys(_offered(folder), folder), 2) if _offers(folder) else None


def _make_room(folder: Path) -> None:
    """A group with groups below it may have no processes of its own: ours move down, once."""
    if _offers(folder):
        return
    leaf = folder / "moonmill-main"
    leaf.mkdir(exist_ok=True)
    for pid in (folder / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(pid)
    (folder / "cgroup.subtree_control").write_text("+memory +cpu")


def _offered(folder: Path) -> list[str]:
    return sorted({"memory", "cpu"}.intersection((folder / "cgroup.subtree_control").read_text().split()))


def _offers(folder: Path) -> bool:
    control = folder / "cgroup.subtree_control"
    return control.exists() and "memory" in _offered(folder)


def _write_if_there(path: Path, text: str) -> None:
    """Not every kernel counts swap."""
    if path.exists():
        path.write_text(text)
