"""What is the local provider's own: what it refuses, what it needs of the host, what it falls back to."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from moonmill.sandboxes import SandboxLimits, SandboxSpec, SandboxSpecError, SandboxUnavailableError, cgroups
from moonmill.sandboxes.calls import Call
from moonmill.sandboxes.local import LocalProvider
from moonmill.sandboxes.testing.traces import children, marked_processes

pytestmark = pytest.mark.anyio
ENTER = """
import anyio
from moonmill.errors import MoonmillError
from moonmill.sandboxes.local import LocalProvider

async def main():
    try:
        async with LocalProvider():
            print("entered")
    except MoonmillError as e:
        print(type(e).__name__, e)

anyio.run(main)
"""

WITH_FEW_DESCRIPTORS = """
import os, resource
import anyio
from moonmill.sandboxes import SandboxSpec
from moonmill.errors import MoonmillError
from moonmill.sandboxes.local import LocalProvider

async def main():
    async with LocalProvider() as provider:
        used = max(map(int, os.listdir("/proc/self/fd")))
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        for more in range(25):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, most))
            try:
                async with provider.open(SandboxSpec()) as sandbox:
                    await sandbox.exec(["true"])
                print("opened")
            except MoonmillError as e:
                print(type(e).__name__, e)

anyio.run(main)
"""


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (SandboxSpec(image="ubuntu"), "has no images, and the spec's is 'ubuntu'"),
        (SandboxSpec(network="open"), "opens no network"),
        (SandboxSpec(user="root"), "one user, `user`, and the spec's is 'root'"),
        (SandboxSpec(workdir="/usr/share/work"), "workdir: '/usr/share/work' cannot be"),
        (SandboxSpec(workdir="/tmp"), "workdir: '/tmp' cannot be"),
        (SandboxSpec(workdir="/a/../etc"), "workdir: '/a/../etc' cannot be"),
        (SandboxSpec(workdir="here"), "workdir is 'here', but should be"),
        (SandboxSpec(workdir="/"), "workdir is '/', but should be"),
    ],
)
async def test_a_spec_that_it_cannot_honour_is_refused(local: LocalProvider, spec: SandboxSpec, why: str) -> None:
    with pytest.raises(SandboxSpecError, match=why):
        async with local.open(spec):
            pass


@pytest.mark.parametrize("workdir", ["/workspace", "/home/user/project", "/testbed"])
async def test_the_workdir_is_where_the_spec_says(local: LocalProvider, workdir: str) -> None:
    async with local.open(SandboxSpec(workdir=workdir, files={"a b/c": "1", "/tmp/d": b"2"})) as sandbox:
        assert (await sandbox.exec(["pwd"])).stdout == f"{workdir}\n"
        assert (await sandbox.exec(["sh", "-c", "echo $HOME; cat 'a b/c' /tmp/d"])).stdout == f"{workdir}\n12"


async def test_a_file_that_cannot_be_there_is_the_specs_fault(local: LocalProvider) -> None:
    with pytest.raises(SandboxSpecError, match=r"files: /usr/bin/evil: Read-only file system"):
        async with local.open(SandboxSpec(files={"/usr/bin/evil": "x"})):
            pass


async def test_without_bubblewrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxUnavailableError, match="no program bwrap on the PATH: apt-get install bubblewrap"):
        async with LocalProvider():
            pass


def test_where_user_namespaces_are_blocked_it_fails_closed() -> None:
    """Within a namespace in which the kernel makes no further ones, as many hosts are set."""
    bwrap = shutil.which("bwrap")
    assert bwrap
    blocked = [bwrap, "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--unshare-user", "--disable-userns"]
    done = subprocess.run(
        [*blocked, "--uid", "1000", "--gid", "1000", sys.executable, "-P", "-c", ENTER],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("SandboxUnavailableError the local sandbox is gone"), done
    assert "sysctl -w user.max_user_namespaces" in done.stdout
    assert "or use the docker provider" in done.stdout


async def test_without_control_groups_each_process_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "find", lambda: None)
    async with LocalProvider() as provider:
        assert "each process alone" in provider.enforces()["memory"]
        assert {"cpus", "memory of all"}.isdisjoint(provider.enforces())
        with pytest.raises(SandboxSpecError, match=r"limits\.cpus: 0\.5 cannot be enforced.*systemd-run"):
            provider.require(SandboxSpec(limits=SandboxLimits(cpus=0.5)))
        async with provider.open(SandboxSpec(limits=SandboxLimits(memory_mib=128))) as sandbox:
            done = await sandbox.exec(["python3", "-c", "bytearray(300 << 20)"])
            assert "MemoryError" in done.stderr
            assert (await sandbox.exec(["python3", "-c", "bytearray(30 << 20)"])).returncode == 0


@pytest.mark.parametrize("version", [1, 2])
def test_groups_of_either_version_are_set_and_removed(tmp_path: Path, version: int) -> None:
    """The kernel here has one of them; of the other, at least the files that would be written are right."""
    parents = {name: tmp_path / (name if version == 1 else "") for name in ("memory", "cpu")}
    for parent in parents.values():
        parent.mkdir(exist_ok=True)
    group = cgroups.Groups(parents, version).new()
    group.limit(SandboxLimits(memory_mib=2, cpus=1.5))
    group.add(42)
    written = {
        re.sub(rf"moonmill-{os.getpid()}-\d+-\d+/", "", str(path.relative_to(tmp_path))): path.read_text()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    if version == 2:
        assert written == {"memory.max": str(2 << 20), "cpu.max": "150000 100000", "cgroup.procs": "42"}
    else:
        assert written == {
            "memory/memory.limit_in_bytes": str(2 << 20),
            "memory/cgroup.procs": "42",
            "cpu/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "150000",
            "cpu/cgroup.procs": "42",
        }


def test_groups_of_processes_that_are_no_more_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    groups = cgroups.Groups({"memory": tmp_path}, 2)
    own = groups.new()
    own.limit(SandboxLimits())
    for path in tmp_path.rglob("*.*"):
        path.unlink()  # the kernel's own do not stand in the way of removing a group
    [ours] = [path.name for path in tmp_path.iterdir()]
    # The last is one that had our number before us.
    for name in (f"moonmill-{ended.pid}-7-3", "somebody-elses", f"moonmill-{os.getpid()}-7-3"):
        (tmp_path / name).mkdir()
    groups.sweep()
    assert {p.name for p in tmp_path.iterdir()} == {ours, "somebody-elses"}


async def test_more_processes_than_this_process_may_ask_for_are_refused(
    local: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (500, 500))
    local.require(SandboxSpec(limits=SandboxLimits(pids=499)))
    with pytest.raises(SandboxSpecError, match=r"limits\.pids is 500, and this process may ask for 500 \(ulimit -Hu\)"):
        local.require(SandboxSpec(limits=SandboxLimits(pids=500)))


async def test_a_share_of_a_processor_is_what_it_gets(local: LocalProvider) -> None:
    busy = "import time; end = time.monotonic() + 1; \nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    async with local.open(SandboxSpec(limits=SandboxLimits(cpus=0.2))) as sandbox:
        used = float((await sandbox.exec(["python3", "-c", busy])).stdout)
    assert used < 0.5


async def test_a_set_up_that_is_killed_is_known_at_once_and_leaves_nothing(
    local: LocalProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Half-way, bubblewrap's child waits for its parent, without end, and holds the stream open."""
    half_way = tmp_path / "bwrap"
    half_way.write_text("#!/bin/sh\nsleep 987654 &\nkill -KILL $$\n")
    half_way.chmod(0o755)
    monkeypatch.setattr(local, "_bwrap", [str(half_way)])
    with anyio.fail_after(10), pytest.raises(SandboxUnavailableError, match="local sandbox is gone"):
        async with local.open(SandboxSpec()):
            pass
    assert not list(marked_processes("987654"))


async def test_whenever_bubblewrap_is_killed_nothing_stays(local: LocalProvider) -> None:
    before = children()
    outcomes = set()
    for attempt in range(40):
        async with anyio.create_task_group() as group:
            group.start_soon(_kill_bubblewrap, before, attempt / 4000)
            with anyio.fail_after(10):
                try:
                    async with local.open(SandboxSpec()) as sandbox:
                        await sandbox.exec(["true"])
                    outcomes.add("opened")
                except SandboxUnavailableError:
                    outcomes.add("refused")
            group.cancel_scope.cancel()
    assert "refused" in outcomes
    with anyio.fail_after(5):
        while children() - before:  # noqa: ASYNC110  # nothing of ours tells of them
            await anyio.sleep(0.02)


async def _kill_bubblewrap(before: set[int], seconds: float) -> None:
    """So long after it was started. It is the first that is new; below it there may be its child."""
    while not (new := children() - before):  # noqa: ASYNC110
        await anyio.sleep(0.0005)
    await anyio.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(min(new), signal.SIGKILL)


async def test_what_is_written_in_small_pieces_comes_in_large_ones(
    local: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    take = Call.take
    monkeypatch.setattr(Call, "take", lambda self, kind, data: (sizes.append(len(data)), take(self, kind, data)))
    async with local.open(SandboxSpec()) as sandbox:
        done = await sandbox.exec(["dd", "if=/dev/zero", "bs=1", "count=100000"])
    assert len(done.stdout_bytes) == 100_000
    assert len(sizes) < 20


def test_too_few_file_descriptors_are_told() -> None:
    argv = [sys.executable, "-P", "-c", WITH_FEW_DESCRIPTORS]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    told = done.stdout.splitlines()
    assert len(told) == 25
    assert told[-1] == "opened"
    wrong = [line for line in told if not re.match(r"opened$|SandboxUnavailableError .*(ulimit -n|open files)", line)]
    assert wrong == []
