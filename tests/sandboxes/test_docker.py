"""The docker provider on a real daemon: what is its own. What all have in common is in the self-check suite."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from moonmill.sandboxes import (
    ExecError,
    SandboxFileError,
    SandboxLimits,
    SandboxSpec,
    SandboxSpecError,
    SandboxUnavailableError,
    docker_owner,
)
from moonmill.sandboxes.docker_client import DaemonError
from moonmill.sandboxes.docker_daemon import Daemon
from tests.sandboxes.containers import IMAGE, daemon, gone, of, ours, provider

pytestmark = pytest.mark.anyio

FACTS = """
import json, os, socket
def can(family):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True
def writable(path):
    try:
        open(path + "/probe", "w").close()
    except OSError:
        return False
    return True
def runs(path):
    with open(path + "/script", "w") as file:
        file.write("#!/bin/sh")
    os.chmod(path + "/script", 0o755)
    return os.access(path + "/script", os.X_OK) and os.system(path + "/script 2>/dev/null") == 0
def mib(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize >> 20
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
places = ("/workspace", "/tmp", "/dev/shm", "/var/tmp", "/run")
print(json.dumps({
    "uid": os.getuid(), "groups": os.getgroups(), "caps": int(status["CapEff"], 16), "nnp": int(status["NoNewPrivs"]),
    "sizes": {path: mib(path) for path in places if writable(path)},
    "runs": [path for path in places if writable(path) and runs(path)],
    "elsewhere": [path for path in ("/", "/etc", "/usr", "/home", "/root", "/var", "/dev", "/sys", "/proc", "/run")
                  if writable(path)],
    "sockets": {name: can(getattr(socket, "AF_" + name)) for name in ("UNIX", "INET", "VSOCK", "NETLINK", "PACKET")},
    "links": os.listdir("/sys/class/net"), "host": socket.gethostname(), "env": dict(os.environ),
    "docker": os.path.exists("/var/run/docker.sock"), "processes": [p for p in os.listdir("/proc") if p.isdigit()],
}))
"""


async def facts(spec: SandboxSpec) -> dict[str, Any]:
    async with provider() as docker, docker.open(spec) as sandbox:
        result = await sandbox.exec(["python3", "-c", FACTS])
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def test_a_command_finds_itself_in_a_closed_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    found = await facts(SandboxSpec(limits=SandboxLimits(disk_mib=24), env={"A": "b"}))
    assert (found["uid"], found["groups"], found["caps"], found["nnp"]) == (1000, [], 0, 1)
    assert found["sizes"] == dict.fromkeys(("/workspace", "/tmp", "/dev/shm", "/var/tmp"), 24)
    assert found["runs"] == ["/workspace", "/tmp"]
    assert found["elsewhere"] == []
    assert found["sockets"] == {"UNIX": True, "INET": True, "VSOCK": False, "NETLINK": False, "PACKET": False}
    assert found["links"] == ["lo"]
    assert found["host"] == "sandbox"
    assert found["env"] == {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/workspace", "LANG": "C.UTF-8", "A": "b"
    }  # fmt: skip
    assert not found["docker"]
    assert len(found["processes"]) == 2


async def test_the_supervisor_is_no_text_in_the_list_of_processes() -> None:
    async with provider() as docker, docker.open(SandboxSpec()) as sandbox:
        assert len((await sandbox.exec(["cat", "/proc/1/cmdline"])).stdout) < 500


async def test_the_daemon_is_asked_for_every_limit() -> None:
    limits = SandboxLimits(memory_mib=100, pids=20, disk_mib=10, cpus=0.5)
    async with provider() as docker:
        async with docker.open(SandboxSpec(limits=limits)):
            [name] = of(docker)
            with daemon() as client:
                found = client.inspect_container(name)
        assert of(docker) == {}
    host, config = found["HostConfig"], found["Config"]
    wanted = {
        "NetworkMode": "none", "ReadonlyRootfs": True, "Memory": 100 << 20, "MemorySwap": 100 << 20, "PidsLimit": 28,
        "NanoCpus": 500_000_000, "CapDrop": ["ALL"], "IpcMode": "private", "AutoRemove": True, "Binds": None,
        "Privileged": False, "PidMode": "", "ShmSize": 10 << 20, "Init": False, "Devices": None,
    }  # fmt: skip
    assert {key: host[key] for key in wanted} == wanted
    assert sorted(name.removeprefix("CAP_") for name in host["CapAdd"]) == ["KILL", "SETGID", "SETUID"]
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert host["LogConfig"]["Type"] == "none"
    assert (config["StdinOnce"], config["Tty"], config["Healthcheck"]) == (True, False, {"Test": ["NONE"]})
    assert found["Mounts"] == []


async def test_memory_is_limited_and_said_to_have_run_out() -> None:
    limits = SandboxLimits(memory_mib=64)
    async with provider() as docker, docker.open(SandboxSpec(limits=limits)) as sandbox:
        result = await sandbox.exec(["python3", "-c", "bytearray(200 << 20)"])
        assert (result.returncode, result.oom_killed) == (137, True)
        result = await sandbox.exec(["bash", "-c", "kill -9 $$"])
        assert (result.returncode, result.oom_killed) == (137, False)
        assert (await sandbox.exec(["echo", "still there"])).stdout == "still there\n"


async def test_processes_are_limited() -> None:
    code = "import subprocess\nfor n in range(99): subprocess.Popen(['sleep', '60'])"
    async with provider() as docker, docker.open(SandboxSpec(limits=SandboxLimits(pids=20))) as sandbox:
        result = await sandbox.exec(["python3", "-c", code])
        assert result.returncode == 1
        assert "Resource temporarily unavailable" in result.stderr


async def test_commands_that_use_up_all_processes_are_what_is_told_of() -> None:
    """Also those that the supervisor would need."""
    code = "import os, time\nwhile True:\n try: os.fork() or time.sleep(60)\n except OSError: time.sleep(0.05)"
    async with provider() as docker, docker.open(SandboxSpec(limits=SandboxLimits(pids=10))) as sandbox:
        await sandbox.exec(["sh", "-c", f'setsid python3 -c "{code}" >/dev/null 2>&1 &'])
        await anyio.sleep(2)
        with pytest.raises(ExecError, match=r"'true' could not be started: no further process .* limits\.pids"):
            await sandbox.exec(["true"])
        with pytest.raises(SandboxFileError, match=r"limits\.pids") as raised:
            await sandbox.read_file("/etc/passwd")
        assert raised.value.problem == "no_processes"
        assert not sandbox.lost


async def test_other_users_of_the_image_can_be_had() -> None:
    async with provider() as docker:
        async with docker.open(SandboxSpec(user="root", files={"f": "x"})) as sandbox:
            assert (await sandbox.exec(["id", "-u"])).stdout == "0\n"
            assert (await sandbox.exec(["stat", "-c", "%u", "f"])).stdout == "0\n"
            assert (await sandbox.exec(["cat", "/proc/1/environ"])).returncode == 1
        async with docker.open(SandboxSpec(user="4321")) as sandbox:
            assert (await sandbox.exec(["stat", "-c", "%u", "."])).stdout == "4321\n"
            assert (await sandbox.exec(["id", "-u"], user="user")).stdout == "1000\n"
            with pytest.raises(ExecError, match="no such user"):
                await sandbox.exec(["true"], user="nobody-there")
        async with docker.open(SandboxSpec(user="user")) as sandbox:
            assert (await sandbox.exec(["stat", "-c", "%U", "."])).stdout == "user\n"
        with pytest.raises(SandboxSpecError, match=r"there is no user 'nobody-there' .*in the image"):
            async with docker.open(SandboxSpec(user="nobody-there")):
                pass


async def test_an_open_network_is_docker_s_bridge() -> None:
    async with provider() as docker, docker.open(SandboxSpec(network="open")) as sandbox:
        assert set((await sandbox.exec(["ls", "/sys/class/net"])).stdout.split()) == {"eth0", "lo"}


async def test_what_cannot_be_had_is_refused() -> None:
    async with provider() as docker:
        for spec, words in (
            (SandboxSpec(workdir="/"), "workdir"),
            (SandboxSpec(workdir="here"), "workdir"),
            (SandboxSpec(workdir="/proc/self"), "workdir"),
            (SandboxSpec(workdir="/a:exec"), "workdir"),
            (SandboxSpec(limits=SandboxLimits(memory_mib=1)), r"limits\.memory_mib: expected a whole number from 32 "),
            (SandboxSpec(limits=SandboxLimits(cpus=0.001)), r"limits\.cpus: expected a number from 0\.01 "),
        ):
            with pytest.raises(SandboxSpecError, match=words):
                docker.require(spec)
            with pytest.raises(SandboxSpecError, match=words):
                async with docker.open(spec):
                    pass
        assert of(docker) == {}


async def test_files_of_a_spec_that_cannot_be_there_are_refused() -> None:
    async with provider() as docker:
        with pytest.raises(SandboxSpecError, match="files: /etc/passwd: "):
            async with docker.open(SandboxSpec(files={"/etc/passwd": "me"})):
                pass
        assert of(docker) == {}


async def test_the_workdir_may_be_where_something_is() -> None:
    async with provider() as docker, docker.open(SandboxSpec(workdir="/tmp/work/deep")) as sandbox:
        assert (await sandbox.exec(["pwd"])).stdout == "/tmp/work/deep\n"
        await sandbox.write_file("a", "b")
        await sandbox.write_file("/tmp/c", "d")


async def test_a_container_that_is_taken_away_is_told_at_once() -> None:
    async with provider() as docker, docker.open(SandboxSpec()) as sandbox:
        [name] = of(docker)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, _take_away, name)
                with pytest.raises(SandboxUnavailableError, match="docker sandbox is gone"):
                    await sandbox.exec(["sleep", "100"], timeout=100)
        with pytest.raises(SandboxUnavailableError):
            await sandbox.exec(["true"])


def _take_away(name: str) -> None:
    with daemon() as client:
        client.remove_container(name, force=True)


async def test_leaving_the_provider_removes_what_is_still_there() -> None:
    async with provider() as docker:
        with daemon() as client:
            host = client.create_host_config()
            labels = docker_owner.labels(docker.id)
            made = client.create_container(IMAGE, ["true"], labels=labels, host_config=host)["Id"]
        assert made in of(docker)
    assert made not in ours()


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.08, 0.15, 0.25])
async def test_a_creation_that_is_cancelled_leaves_nothing(seconds: float) -> None:
    async with provider() as docker:
        with anyio.move_on_after(seconds) as scope:
            async with docker.open(SandboxSpec()):
                await anyio.sleep(seconds)
        assert scope.cancelled_caught
        assert of(docker) == {}
        async with docker.open(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["echo", "on"])).stdout == "on\n"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nor_does_one_whose_task_asyncio_cancels() -> None:
    async def create() -> None:
        async with docker.open(SandboxSpec()):
            await asyncio.sleep(60)

    async with provider() as docker:
        for seconds in (0.01, 0.03, 0.1):
            task = asyncio.create_task(create())
            await asyncio.sleep(seconds)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with anyio.fail_after(20):
            while of(docker):  # noqa: ASYNC110  # of the daemon's doing nobody tells us
                await anyio.sleep(0.05)


async def test_nothing_of_ours_is_left_open() -> None:
    def open_files() -> list[str]:
        return [link for fd in os.listdir("/proc/self/fd") if (link := _link(fd)).startswith(("socket:", "pipe:"))]

    async with provider() as docker, docker.open(SandboxSpec()):
        pass
    gc.collect()
    before = len(open_files())
    async with provider() as docker:
        for _ in range(2):
            async with docker.open(SandboxSpec()) as sandbox:
                await sandbox.exec(["true"])
    assert len(open_files()) == before


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


OWNER = f"""
import anyio
from moonmill.sandboxes import SandboxSpec
from moonmill.sandboxes.docker_provider import DockerProvider

async def main():
    async with DockerProvider(image="{IMAGE}") as docker:
        print(docker.id, flush=True)
        async with docker.open(SandboxSpec()) as sandbox:
            await sandbox.exec(["bash", "-c", "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo started"])
            print("open", flush=True)
            await anyio.sleep(1000)

anyio.run(main)
"""


def labelled(owner: str) -> set[str]:
    return {name for name, c in ours().items() if c["Labels"][docker_owner.LABEL] == owner}


def start_owner() -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)


def test_a_killed_process_leaves_no_container() -> None:
    with start_owner() as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        assert process.stdout.readline() == "open\n"
        left = labelled(owner)
        assert len(left) == 1
        process.kill()
    assert gone(left, seconds=10)


@pytest.mark.parametrize("milliseconds", [10, 60, 120, 200])
async def test_nor_does_one_that_is_killed_while_it_makes_one(milliseconds: int) -> None:
    """One that was created and not started is left to the next who comes."""
    with start_owner() as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        await anyio.sleep(milliseconds / 1000)
        process.send_signal(signal.SIGKILL)
    await anyio.sleep(1)  # for what the daemon was at
    async with provider():
        left = {name for name, c in ours().items() if c["Labels"][docker_owner.LABEL] == owner}
        assert await anyio.to_thread.run_sync(gone, left)


def ended_process() -> Mapping[str, str]:
    """The labels that a process had which has ended."""
    code = "import json; from moonmill.sandboxes import docker_owner; print(json.dumps(docker_owner.labels('dead')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


async def test_what_ended_processes_have_left_is_swept_away_and_nothing_else() -> None:
    dead, ours_now = ended_process(), docker_owner.labels("alive")
    elsewhere = {**dead, "moonmill.place": "another-boot/4026531836"}
    with daemon() as client:

        def make(labels: Mapping[str, str]) -> str:
            name: str = client.create_container(IMAGE, ["sleep", "60"], labels=labels)["Id"]
            return name

        left, alive, far, theirs = make(dead), make(ours_now), make(elsewhere), make({"moonmill": "unrelated"})
        client.start(left)
        try:
            async with provider():
                found = {c["Id"] for c in client.containers(all=True)}
            assert left not in found
            assert {alive, far, theirs} <= found
        finally:
            for name in (alive, far, theirs):
                client.remove_container(name, force=True)


def test_a_number_that_another_process_has_now_is_not_taken_for_the_owner() -> None:
    labels = docker_owner.labels("us")
    assert not docker_owner.is_left_behind(labels)
    number, _, start = labels["moonmill.owner"].partition("/")
    assert docker_owner.is_left_behind({**labels, "moonmill.owner": f"{number}/{int(start) - 1}"})
    assert not docker_owner.is_left_behind({"moonmill.owner": "1/1"})
    assert not docker_owner.is_left_behind({**labels, "moonmill.owner": "nonsense"})


def test_a_zombie_owns_nothing() -> None:
    process = subprocess.Popen(["true"])
    try:
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        labels = {**docker_owner.labels("us"), "moonmill.owner": f"{process.pid}/{start}"}
        assert docker_owner.is_left_behind(labels)
    finally:
        process.wait()


async def test_sixteen_at_once() -> None:
    async def use(number: int) -> None:
        async with docker.open(SandboxSpec(env={"N": str(number)})) as sandbox:
            assert (await sandbox.exec(["bash", "-c", "echo $N"])).stdout == f"{number}\n"

    async with provider() as docker:
        async with anyio.create_task_group() as group:
            for number in range(16):
                group.start_soon(use, number)
        assert of(docker) == {}


async def test_a_refusal_of_the_daemon_is_told_in_its_words() -> None:
    async with Daemon() as reached:
        with pytest.raises(
            DaemonError, match=r"^docker could not look at a container: No such container: none-such$"
        ) as e:
            await reached.call("look at a container", "inspect_container", "none-such")
        assert e.value.status == 404


async def test_it_says_what_it_enforces() -> None:
    async with provider() as docker:
        assert docker.enforces().keys() == {
            "memory", "memory of all", "pids", "disk", "cpus", "network", "processes", "files", "secrets", "user",
            "system calls",
        }  # fmt: skip
        docker.require(replace(SandboxSpec(), network="open"))
