"""The process that holds a sandbox and ends, run as a module of its own and told what to do on stdin."""

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SETTLING_SECONDS = 3.0
_ROUNDS = 3


def main() -> None:
    """Do what stdin says: where to import from, the event loop, the marker, how it ends, the spec and the factory."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    path, backend, marker, end, spec, factory = pickle.loads(sys.stdin.buffer.read(size))
    sys.path[:] = path

    import anyio

    anyio.run(_hold, pickle.loads(factory), pickle.loads(spec), marker, end, backend=backend)


async def _hold(factory: Callable[[], Any], spec: Any, marker: str, end: str) -> None:
    from anyio.to_thread import run_sync

    if end != "is killed":  # what is opened once for all, and imported, is no leak
        async with factory() as provider:
            await _use(provider, spec, marker)
            await run_sync(time.sleep, 0)
    before = _counted()
    if end == "comes after":
        _say("closed")
        return
    async with factory() as provider:
        if end == "closes":
            for _ in range(_ROUNDS):
                await _use(provider, spec, marker)
        async with provider.open(spec) as sandbox:
            await sandbox.write_file("file", b"left")
            await sandbox.exec(["sh", "-c", f"echo left >/tmp/file; sleep {marker} >/dev/null 2>&1 &"])
            if end == "is killed" and os.fork() == 0:  # as authors' code may have done; it holds what it was given
                _outlive(os.getppid())
            _say("open")
            await run_sync(sys.stdin.buffer.readline)
    descriptors, children, threads = _counted()
    give_up = time.monotonic() + SETTLING_SECONDS
    while (set(descriptors) - set(before[0]) or children) and time.monotonic() < give_up:
        await run_sync(time.sleep, 0.02)
        descriptors, children, threads = _counted()
    new = [f"{name} is {descriptors[name]}" for name in descriptors if name not in before[0]]
    _say("closed", descriptors=new, children=children, threads=max(0, threads - before[2]))


async def _use(provider: Any, spec: Any, marker: str) -> None:
    async with provider.open(spec) as sandbox:
        await sandbox.exec(["sh", "-c", f"sleep {marker} >/dev/null 2>&1 &"])


def _outlive(parent: int) -> None:
    """Stay until the process that this was forked from is killed, and until it has been looked what is left of it."""
    os.closerange(0, 3)
    while os.getppid() == parent:
        time.sleep(0.05)
    time.sleep(4 * SETTLING_SECONDS)
    os._exit(0)


def _say(state: str, **more: object) -> None:
    print(json.dumps({"state": state, **more}), flush=True)  # noqa: T201


def _counted() -> tuple[dict[str, str], int, int]:
    """The file descriptors, the processes below this one, and the number of threads."""
    from moonmill.sandboxes.testing.traces import children

    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # it was for the listing
            continue
    return descriptors, len(children()), threading.active_count()


if __name__ == "__main__":
    main()
