"""Episodes of `python-code-v0` with scripts in the model's place: how many a second, and what they leave behind.

    python tests/benchmarks/bench_coding.py [--episodes 2000] [--at-once 200] [--provider docker --image IMAGE] [--json]

Each episode has a sandbox of its own, runs a program there, and is graded in another. Of four episodes one solves its
task, one submits what is wrong, one leaves what it can in both sandboxes (processes that have detached themselves and
ignore being asked to end, files, threads) and solves its task, and one gives up. What there is of processes, control
groups, containers, mounts, file descriptors, threads and temporary files is counted before and after; it exits with 1
where there is more, or where memory grows.

Each thread of glibc's allocator keeps some freed pieces for itself, which it counts as used; with two hundred threads
that goes on growing for ten thousand episodes. Here that is switched off, so that what is used can be told exactly.
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from moonmill import Rollout, Task, make
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.config import SandboxConfig
from moonmill.envs import SandboxService, Taskset
from moonmill.envs.library.coding.expert import demonstrate, solve
from moonmill.sandboxes import docker_owner
from moonmill.types import Message, ToolCall

TASKS = 100
LOOKS = 10
"""How often memory is looked at, at most: in between, all of the episodes that run at once have ended."""
MOST_GROWTH = 100.0
"""Bytes an episode between the second look and the last one that are no leak; Python's smallest object has 16."""
MOST_RESIDENT = 16 << 20
"""Bytes of this process in memory, likewise, in all: what is free between its pieces."""
TUNABLES = "glibc.malloc.tcache_count=0"
LEAVE = """
import os, signal, threading, time
open("/tmp/left", "wb").write(bytes(1 << 20))
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(0, 64)
    time.sleep(1000)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--provider", default="local")
    parser.add_argument("--image", help="the image of the sandboxes, for the provider docker")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if os.environ.get("GLIBC_TUNABLES") != TUNABLES:  # It is read when a process starts.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": TUNABLES})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        result = measure(args.episodes, args.at_once, args.provider, args.image)
    if args.json:
        print(json.dumps(result))
    else:
        print_table(result)
    sys.exit(bool(result["left"]))


def measure(episodes: int, at_once: int, provider: str, image: str | None) -> dict[str, Any]:
    """Play them; returns speed, memory at each look, and what there is more of than before."""
    factory = partial(make, "python-code-v0", image=image)
    taskset = Taskset(factory, "train", 0)
    tasks = [taskset.task(i) for i in range(TASKS)]
    config = SandboxConfig(provider=provider, max_open=at_once)
    with SandboxService(config):  # What is there once, and for all the time: threads, modules.
        anyio.run(play, factory, tasks, range(8), 8)
    before = count()
    looks = [memory()]
    start, cpu = time.perf_counter(), time.process_time()
    with SandboxService(config) as service:
        parts = max(1, min(LOOKS, episodes // at_once))
        for number in range(parts):
            part = range(episodes * number // parts, episodes * (number + 1) // parts)
            anyio.run(play, factory, tasks, part, at_once)
            looks.append(memory())
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        in_use = service.figures().in_use
    after = count()
    left = {what: after[what] - before[what] for what in before if after[what] > before[what]}
    if in_use:
        left["sandboxes"] = in_use
    second = min(2, parts)
    slight = MOST_GROWTH * max(1, episodes - episodes * second // parts)
    for name, most in (("malloc", slight), ("python", slight), ("resident", MOST_RESIDENT)):
        if (more := looks[-1][name] - looks[second][name]) > most:
            left[f"bytes ({name})"] = more
    return {
        "episodes": episodes,
        "at_once": at_once,
        "provider": provider,
        "episodes_per_second": episodes / seconds,
        "own_cpu_ms_per_episode": 1000 * cpu / episodes,
        "memory": looks,
        "before": before,
        "after": after,
        "left": left,
    }


async def play(factory: partial[Any], tasks: Sequence[Task], numbers: range, at_once: int) -> None:
    """Play the episodes with these numbers, so many at a time; each must end as it is meant to."""
    limit = anyio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with limit:
            script, worth = SCRIPTS[number % len(SCRIPTS)]
            runner = EpisodeRunner("python-code-v0", factory, ScriptedAgent(script))
            rollout = await runner.run(tasks[number % len(tasks)], id=str(number), seed=number)
            expect(rollout, worth)

    async with anyio.create_task_group() as group:
        for number in numbers:
            group.start_soon(one, number)


def expect(rollout: Rollout, worth: float) -> None:
    """Stop where an episode did not end as its script wants it."""
    if rollout.reward != worth or rollout.error:
        raise SystemExit(f"an episode worth {worth} got {rollout.reward}: {rollout.error} {rollout.messages}")


def leave(messages: Sequence[Message]) -> Message:
    """Leave what it can in both sandboxes, and solve the task."""
    if messages[-1].role == "tool":
        told = next(m.content for m in messages if m.role == "user")
        return Message("assistant", tool_calls=(ToolCall("2", "submit", {"code": LEAVE + solve(told).source}),))
    return Message("assistant", tool_calls=(ToolCall("1", "python", {"code": LEAVE + "os._exit(0)"}),))


def submit_nonsense(messages: Sequence[Message]) -> Message:
    """Try nothing, submit what is wrong."""
    return Message("assistant", tool_calls=(ToolCall("1", "submit", {"code": "def solve(value):\n    return ...\n"}),))


def give_up(messages: Sequence[Message]) -> Message | str:
    """Run something that fails, and give up."""
    if messages[-1].role == "tool":
        return "I do not know."
    return Message("assistant", tool_calls=(ToolCall("1", "python", {"code": "raise SystemExit('no')"}),))


SCRIPTS = ((demonstrate, 1.0), (submit_nonsense, 0.0), (leave, 1.0), (give_up, 0.0))


def count() -> dict[str, int]:
    """What there is now that belongs to this process."""
    gc.collect()
    time.sleep(0.5)  # Threads end, and the kernel cleans up, a little later.
    groups = [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if f"moonmill-{os.getpid()}-" in name]
    return {
        "processes": len(descendants()),
        "control groups": len(groups),
        "containers": len(containers()),
        # A Docker daemon's are not told apart by whom they are for; its containers are counted.
        "mounts": sum("docker" not in line for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "file descriptors": len(os.listdir("/proc/self/fd")),
        # Those that wait for further episodes are kept on purpose.
        "threads": sum(thread.name != "moonmill-episode" for thread in threading.enumerate()),
        "temporary files": sum(len(names) for _, *both in os.walk(tempfile.gettempdir()) for names in both),
    }


def descendants() -> set[int]:
    """Processes that this one has started, and those that they have, zombies included."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def containers() -> list[str]:
    """Those of this process, where there is docker."""
    labels = [f"{name}={value}" for name, value in docker_owner.labels("").items() if name != docker_owner.LABEL]
    argv = ["docker", "ps", "--all", "--quiet", *(f"--filter=label={label}" for label in labels)]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        return []


class _Figures(ctypes.Structure):
    """`struct mallinfo2`, whose eighth field is what is used."""

    _fields_ = tuple((f"field_{number}", ctypes.c_size_t) for number in range(1, 11))


def memory() -> dict[str, int]:
    """Bytes: used of the allocator's heaps, used by Python's small objects, and of this process in memory."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Figures
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "malloc": libc.mallinfo2().field_8,
        "python": 16 * sys.getallocatedblocks(),
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def print_table(result: dict[str, Any]) -> None:
    """For people."""
    print(f"{result['episodes']} episodes, {result['at_once']} at once, {result['provider']}")
    print(f"{'episodes per second':28}{result['episodes_per_second']:10.1f}")
    print(f"{'own CPU per episode (ms)':28}{result['own_cpu_ms_per_episode']:10.1f}")
    for name, what in (
        ("malloc", "in use (MiB)"),
        ("python", "in Python's pieces (MiB)"),
        ("resident", "resident (MiB)"),
    ):
        print(f"{what:28}" + "".join(f"{look[name] / (1 << 20):8.3f}" for look in result["memory"]))
    print(f"{'':28}{'before':>10}{'after':>10}")
    for what, number in result["before"].items():
        print(f"{what:28}{number:10}{result['after'][what]:10}")
    print("left behind: " + (", ".join(f"{n:g} {what}" for what, n in result["left"].items()) or "nothing"))


if __name__ == "__main__":
    main()
