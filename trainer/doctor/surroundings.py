"""Probes of the machine around the software: sandboxes, disks, ports, cores, memory, files, the model hub."""

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import anyio
import httpx

from moonmill.installing import cache_folder
from moonmill.sandboxes.errors import SandboxUnavailableError
from moonmill.trainer.doctor.facts import HUB, Disk, Hub, Machine, Trial

T = TypeVar("T")
_GIB = 1 << 30
_SANDBOX_SECONDS = 10.0
_DAEMON_SECONDS = 5.0
_HUB_SECONDS = 5.0
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""What a container may take, of control groups of either version."""


def local() -> Trial:
    """Open a sandbox of the local provider and run a command in it."""
    from moonmill.sandboxes.local import LocalProvider

    def promises(provider: LocalProvider) -> str:
        kept = provider.enforces()
        return f"a sandbox opens; kept in: {', '.join(kept)}"

    return _tried(LocalProvider, promises, _SANDBOX_SECONDS)


def docker() -> Trial:
    """Ask the Docker daemon about itself."""
    from moonmill.sandboxes.docker_daemon import Daemon

    def told(daemon: Daemon) -> str:
        info = daemon.info
        runtimes = ", ".join(info.get("Runtimes") or ()) or "no runtime"
        return f"daemon {info.get('ServerVersion')} at {daemon.url}, runtimes {runtimes}"

    return _tried(lambda: Daemon(timeout=_DAEMON_SECONDS), told, 2 * _DAEMON_SECONDS)


def disks() -> tuple[Disk, ...]:
    """Space where runs, engines and models, temporary files, and what processes share are kept."""
    places = {
        "working directory": Path.cwd(),
        "cache": cache_folder(),
        "temporary files": Path(tempfile.gettempdir()),
        "shared memory": Path("/dev/shm"),
    }
    return tuple(_disk(what, place) for what, place in places.items())


def port() -> Trial:
    """Listen on 127.0.0.1, and reach it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=_HUB_SECONDS):
                return Trial(works="127.0.0.1 can be listened on and reached")
    except OSError as e:
        return Trial(problem=f"127.0.0.1 cannot be listened on or reached ({e.strerror or e})")


def machine() -> Machine:
    """Cores that this process may use, memory, and how many files it may open."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _available()
    for file in _LIMITS:
        limit = file.read_text().strip() if file.is_file() else "max"
        if limit.isdigit() and int(limit) < total:
            total, free = int(limit), min(free, int(limit))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, most = (2**31 if n == resource.RLIM_INFINITY else n for n in (soft, hard))
    return Machine(len(os.sched_getaffinity(0)), total / _GIB, free / _GIB, files, most)


def hub() -> Hub:
    """Reach the hub that `HF_ENDPOINT` names, unless `HF_HUB_OFFLINE` is set, and see what was fetched before."""
    endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    problem = ""
    if not offline:
        try:
            httpx.head(endpoint, timeout=_HUB_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:
            problem = f"{type(e).__name__}: {e}"
    return Hub(endpoint, offline, problem, _cached())


def _tried(make: Callable[[], AbstractAsyncContextManager[T]], told: Callable[[T], str], seconds: float) -> Trial:
    async def work() -> str:
        with anyio.fail_after(seconds):
            async with make() as made:
                return told(made)

    try:
        return Trial(works=anyio.run(work))
    except SandboxUnavailableError as e:
        return Trial(problem=str(e))


def _disk(what: str, place: Path) -> Disk:
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    return Disk(what, str(place), shutil.disk_usage(there).free / _GIB, os.access(there, os.W_OK))


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _cached() -> tuple[str, ...]:
    """Models in the hub's cache, by their folders' names."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folders = cache.glob("models--*/snapshots/*/config.json")
    return tuple(sorted({f.parts[-4].removeprefix("models--").replace("--", "/") for f in folders}))
