"""What all processes of a sandbox may use together. Whoever goes over it is stopped; nobody else notices."""

import time

import anyio

from moonmill.sandboxes.errors import ExecTimeoutError, SandboxFileError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import NotShownError, Topic
from moonmill.sandboxes.testing.expect import (
    AT_ONCE,
    at_once,
    equal,
    gone,
    new_marker,
    probe,
    refused,
    running,
    shell,
    that,
    until,
)
from moonmill.sandboxes.testing.lab import TIGHT, Lab
from moonmill.sandboxes.types import MIB, SandboxLimits

topic = Topic("limits")
_ALLOCATE = """
import sys
blocks = []
for _ in range(int(sys.argv[1])):
    blocks.append(b"x" * (1 << 20))
"""
_ALLOCATE_IN_CHILDREN = """
import os, sys, time
read, write = os.pipe()
os.set_blocking(read, False)
pids = set()
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        block = b"x" * (int(sys.argv[2]) << 20)
        os.write(write, b"%d " % os.getpid())
        time.sleep(30)
        os._exit(0)
    pids.add(pid)
said, have, end = b"", set(), time.monotonic() + 5
while have < pids and time.monotonic() < end:
    time.sleep(0.05)  # for whom the kernel is about to kill
    try:
        said += os.read(read, 1000)
    except BlockingIOError:
        pass
    pids = {pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0}
    have = {int(word) for word in said.split()} & pids
print(len(have), flush=True)
os.kill(0, 9)
"""
_BOMB = """
import os, sys, time
read, write = os.pipe()
os.write(write, b"x" * int(sys.argv[1]))  # so many there may be, whatever else limits them
os.set_blocking(read, False)
end = time.monotonic() + 30
while time.monotonic() < end:
    try:
        os.read(read, 1)
    except BlockingIOError:
        time.sleep(0.02)
        continue
    try:
        os.fork()
    except OSError:
        os.write(write, b"x")
        time.sleep(0.002)
"""
_BOMBS = 600
_MOST_PIDS = TIGHT.pids * 5 // 4
"""A provider may leave room for processes of its own."""


@topic.around("who allocates more memory than there may be is stopped, and it is told", promise="memory")
async def memory(lab: Lab) -> None:
    sandbox = await lab.sandbox("tight")
    result = await sandbox.exec(["python3", "-ISc", _ALLOCATE, str(4 * TIGHT.memory_mib)], timeout=20)
    that(result.returncode != 0, f"{4 * TIGHT.memory_mib} MiB could be had with a limit of {TIGHT.memory_mib}")
    if result.returncode == 137:
        that(result.oom_killed, "it was killed, and it is not told that this was for its memory")
    elif "MemoryError" not in result.stderr:
        that(False, f"it ended with {result.returncode}: {result.stderr[-200:]}")
    after = await sandbox.exec(["echo", "usable"])
    equal("a command afterwards", (after.stdout, after.oom_killed), ("usable\n", False))


@topic.around("the memory of all processes counts together", promise="memory of all")
async def memory_of_all(lab: Lab) -> None:
    sandbox = await lab.sandbox("tight")
    each = TIGHT.memory_mib // 4
    result = await sandbox.exec(["python3", "-ISc", _ALLOCATE_IN_CHILDREN, "8", str(each)], timeout=20)
    had = int(result.stdout or 0) * each
    that(had <= TIGHT.memory_mib, f"8 processes had {had} MiB at once with a limit of {TIGHT.memory_mib}")
    equal("a command afterwards", await shell(sandbox, "echo usable"), "usable\n")


@topic.around("the number of processes has a limit", promise="pids")
async def processes(lab: Lab) -> None:
    code = """
import signal, time
pids = []
try:
    for _ in range(given["tries"]):
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        pids.append(pid)
except OSError:
    pass
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pid in pids:
    os.waitpid(pid, 0)
answer = len(pids)
"""
    sandbox = await lab.sandbox("tight")
    had = await probe(sandbox, code, tries=4 * TIGHT.pids, timeout=20)
    that(had <= _MOST_PIDS, f"{had} processes could be had with a limit of {TIGHT.pids}")
    that(had >= TIGHT.pids // 2, f"no more than {had} processes could be had with a limit of {TIGHT.pids}")
    equal("a command afterwards", await shell(sandbox, "echo usable"), "usable\n")


@topic.around("threads count as processes do", promise="pids")
async def threads(lab: Lab) -> None:
    code = """
import threading
over, answer = threading.Event(), 0
try:
    for _ in range(given["tries"]):
        threading.Thread(target=over.wait).start()
        answer += 1
except RuntimeError:
    pass
over.set()
"""
    had = await probe(await lab.sandbox("tight"), code, tries=4 * TIGHT.pids, timeout=20)
    that(had <= _MOST_PIDS, f"{had} threads could be had with a limit of {TIGHT.pids}")


@topic.around("a fork bomb bothers nobody else, and is gone after its time-out", promise="pids")
async def fork_bomb(lab: Lab) -> None:
    marker = new_marker()
    sandbox, neighbour = await lab.sandbox("tight"), await lab.sandbox("neighbour")
    timed_out: list[bool] = []

    async def explode() -> None:
        try:
            await sandbox.exec(["python3", "-ISc", _BOMB, str(_BOMBS), marker], timeout=1.0)
        except ExecTimeoutError:
            timed_out.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(explode)
        for _ in range(8):
            with at_once("a neighbour's command"):
                equal("a neighbour's command", (await neighbour.exec(["echo", "here"])).stdout, "here\n")
            await anyio.sleep(0.1)
    that(bool(timed_out), "the bomb has ended before its time-out")
    equal("a command afterwards", (await sandbox.exec(["echo", "usable"], timeout=5)).stdout, "usable\n")
    await gone(sandbox, marker, "a part of the bomb")


@topic.around("sandboxes do not use up each other's processes", promise="pids")
async def processes_of_neighbours(lab: Lab) -> None:
    marker = new_marker()
    count = TIGHT.pids * 5 // 8
    start = f"for i in $(seq {count}); do sleep {marker} >/dev/null 2>&1 & done"
    async with lab.open(TIGHT) as second:
        first = await lab.sandbox("tight")
        for sandbox in (first, second):
            started = await sandbox.exec(["sh", "-c", start])
            equal("the start of processes in each of two", (started.returncode, started.stderr), (0, ""))

            async def all_run(sandbox: Sandbox = sandbox) -> bool:
                return len(await running(sandbox, marker)) == count

            await until(all_run, f"each of two does not have {count} processes")
        await running(first, marker, kill=True)


@topic.around("every place that can be written to has a limit", promise="disk")
async def disk(lab: Lab) -> None:
    code = """
places = [".", "/", "/tmp", "/var/tmp", "/dev/shm", "/dev", "/run", "/home", "/root", "/mnt", "/opt", "/srv", "/etc"]
places += [line.split()[4] for line in open("/proc/self/mountinfo")]
places += [os.environ.get("HOME", "."), os.environ.get("TMPDIR", ".")]
block, answer = bytes(1 << 20), {}
for place in dict.fromkeys(map(os.path.realpath, places)):
    path = os.path.join(place, ".moonmill-check")
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError:
        continue
    written = 0
    try:
        while written < given["most"]:
            written += os.write(fd, block)
    except OSError:
        pass
    os.close(fd)
    os.unlink(path)
    answer[place] = written
"""
    sandbox = await lab.sandbox("tight")
    written = await probe(sandbox, code, most=4 * TIGHT.disk_mib * MIB, timeout=20)
    workdir = (await sandbox.exec(["pwd", "-P"])).stdout.strip()
    that({workdir, "/tmp", "/dev/shm"} <= written.keys(), f"only these can be written to: {', '.join(written)}")
    for place, size in written.items():
        most = TIGHT.disk_mib * MIB
        that(size <= most, f"{size / MIB:.0f} MiB could be written to {place} with a limit of {TIGHT.disk_mib}")
    that(written[workdir] >= TIGHT.disk_mib * MIB // 2, f"no more than {written[workdir]:,} bytes could be written")


@topic.around("a file that is too large for the place is a typed error, and the sandbox stays usable", promise="disk")
async def no_space(lab: Lab) -> None:
    sandbox = await lab.sandbox("tight")
    with refused(SandboxFileError, f"writing {2 * TIGHT.disk_mib} MiB", "no_space", seconds=20):
        await sandbox.write_file("too-large", bytes(2 * TIGHT.disk_mib * MIB))
    filled = await sandbox.exec(["sh", "-c", "head -c 100000000 /dev/zero > filled"])
    that(filled.returncode != 0, "a command could write 100 MB")
    await shell(sandbox, "rm -f too-large filled")
    await sandbox.write_file("small", b"small")
    equal("a file afterwards", await sandbox.read_file("small"), b"small")


@topic.inside("no core dumps are written", promise="disk")
async def no_core_dumps(sandbox: Sandbox) -> None:
    equal("their limit", await shell(sandbox, "ulimit -c"), "0\n")


@topic.around("two busy processes get half a processor where that is the limit", promise="cpus")
async def cpus(lab: Lab) -> None:
    code = """
import time
end = time.monotonic() + 1.5
for _ in range(2):
    if os.fork() == 0:
        while time.monotonic() < end:
            pass
        os._exit(0)
for _ in range(2):
    os.wait()
used = os.times()
answer = (used.children_user + used.children_system) / 1.5
"""
    async with lab.open(SandboxLimits(cpus=0.5)) as sandbox:
        begin = time.monotonic()
        used = await probe(sandbox, code, timeout=20)
        if time.monotonic() - begin > 1.5 + AT_ONCE:
            raise NotShownError("this host is too busy")
        that(used < 0.8, f"they used {used:.2f} processors")
