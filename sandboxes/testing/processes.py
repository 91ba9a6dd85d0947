"""Commands see, read and end no processes but their own, and have no privileges."""

import anyio

from moonmill.sandboxes.errors import ExecTimeoutError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import NotShownError, Topic
from moonmill.sandboxes.testing.expect import equal, probe, that
from moonmill.sandboxes.testing.lab import Lab

topic = Topic("processes")
_LOOKING_SECONDS = 1.0

_ABOVE = """
above, pid = [], os.getppid()
while pid:
    above.append(pid)
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
"""
"""The processes that a command descends from: the supervisor, and what it was started by."""


@topic.around("a process of the host is not seen", promise="processes")
async def host_is_not_seen(lab: Lab) -> None:
    code = """
answer = []
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            if given["name"].encode() in open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0"):
                answer.append(name)
        except OSError:
            pass
"""
    equal("processes of the host", await probe(await lab.sandbox(), code, name=lab.host.witness_name), [])


@topic.around("a process of the host is not reached by its number", promise="processes")
async def host_is_not_reached(lab: Lab) -> None:
    that(not await _is_reached(lab, await lab.sandbox()), "it can be sent signals")


@topic.around("no signal from inside ends or stops the supervisor", promise="processes")
async def supervisor_outlives_signals(lab: Lab) -> None:
    sandbox = await _apart(lab)
    code = f"""
{_ABOVE}
for pid in above:
    for number in [*range(1, 65), 9, 19]:
        try:
            os.kill(pid, number)
        except OSError:
            pass
answer = above
"""
    that(bool(await probe(sandbox, code)), "a command has no parent")
    equal("a command afterwards", (await sandbox.exec(["echo", "usable"], timeout=5)).stdout, "usable\n")


@topic.around("a command that kills all it can reach does not end the supervisor", promise="processes")
async def supervisor_outlives_kill_all(lab: Lab) -> None:
    sandbox = await _apart(lab)
    await sandbox.exec(["sh", "-c", "kill -STOP -1; kill -KILL -1"])
    equal("a command afterwards", (await sandbox.exec(["echo", "usable"], timeout=5)).stdout, "usable\n")


@topic.inside("the supervisor is not read", promise="processes")
async def supervisor_is_not_read(sandbox: Sandbox) -> None:
    code = f"""
{_ABOVE}
answer = []
for pid in above:
    for name in ("mem", "environ", "maps", "auxv"):
        try:
            with open(f"/proc/{{pid}}/{{name}}", "rb") as file:
                if name == "mem" or file.read(1):
                    answer.append(f"/proc/{{pid}}/{{name}}")
        except OSError:
            pass
    try:
        for fd in os.listdir(f"/proc/{{pid}}/fd"):
            answer.append(os.readlink(f"/proc/{{pid}}/fd/{{fd}}"))
    except OSError:
        pass
"""
    equal("what can be read of it", await probe(sandbox, code), [])


@topic.inside("what becomes a command is not read while it has what the supervisor has", promise="processes")
async def becoming_is_not_read(sandbox: Sandbox) -> None:
    code = """
import time
answer = []
end = time.monotonic() + given["seconds"]
while time.monotonic() < end:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                held = [fd for fd in os.listdir(f"/proc/{name}/fd") if int(fd) > 2]
            except OSError:
                continue
            if len(held) > 2:  # to tell that there is no such program, and what it writes to by itself
                answer.append([name, held])
"""
    found: list[object] = []

    async def look() -> None:
        found.extend(await probe(sandbox, code, seconds=_LOOKING_SECONDS))

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        give_up = anyio.current_time() + _LOOKING_SECONDS
        while anyio.current_time() < give_up:
            await sandbox.exec(["true"])
    equal("file descriptors that could be had", found, [])


@topic.around("the supervisor is not traced", promise="processes")
async def supervisor_is_not_traced(lab: Lab) -> None:
    sandbox = await _apart(lab)
    code = f"""
{_ABOVE}
answer = []
try:
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in above:
        for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
            if libc.ptrace(request, pid, None, None) == 0:
                answer.append(pid)
                os.waitpid(pid, 0x40000000)
                libc.ptrace(17, pid, None, None)
except ImportError:
    answer = None
"""
    try:
        traced = await probe(sandbox, code)
    except ExecTimeoutError:
        traced = ["something that did not answer any more"]
    if traced is None:
        raise NotShownError("python3 inside has no ctypes")
    equal("what can be traced", traced, [])


@topic.inside("commands are run by an ordinary user, without capabilities", promise="user")
async def no_capabilities(sandbox: Sandbox) -> None:
    code = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
answer = {name: status[name].split() for name in given["names"]}
"""
    sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"]
    told = await probe(sandbox, code, names=[*sets, "Uid", "Gid", "Groups"])
    for name in sets:
        that(int(told[name][0], 16) == 0, f"{name} is {told[name][0]}")
    for name in ("Uid", "Gid", "Groups"):
        that("0" not in told[name], f"{name} has root's: {' '.join(told[name])}")


@topic.inside("no program gives its caller more privileges", promise="user")
async def no_new_privileges(sandbox: Sandbox) -> None:
    code = """
answer = dict(line.split(":", 1) for line in open("/proc/self/status"))["NoNewPrivs"].strip()
"""
    equal("NoNewPrivs", await probe(sandbox, code), "1")


@topic.inside("devices of the host cannot be opened or made", promise="user")
async def no_devices(sandbox: Sandbox) -> None:
    code = """
import stat
answer = []
harmless = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"}
for folder, _, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(folder, name)
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        if name.startswith("watchdog"):  # to open one has consequences
            continue
        if name not in harmless and not folder.startswith("/dev/pts") and (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)):
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
                answer.append(path)
            except OSError:
                pass
for folder in (".", "/tmp", "/dev/shm"):
    try:
        os.mknod(os.path.join(folder, "moonmill-check-device"), stat.S_IFBLK | 0o600, os.makedev(8, 0))
        answer.append(f"a new one in {folder}")
        os.unlink(os.path.join(folder, "moonmill-check-device"))
    except OSError:
        pass
"""
    equal("devices", await probe(sandbox, code), [])


async def _apart(lab: Lab) -> Sandbox:
    """A sandbox in which it is safe to attack all processes that can be reached."""
    sandbox = await lab.sandbox("tight")
    that(not await _is_reached(lab, sandbox), "this was not tried: it would reach the host's processes")
    return sandbox


async def _is_reached(lab: Lab, sandbox: Sandbox) -> bool:
    """Whether a process of the host can be sent signals from inside."""
    code = """
try:
    os.kill(given["pid"], 0)
    answer = True
except OSError:
    answer = False
if answer:
    try:
        with open(f"/proc/{given['pid']}/cmdline", "rb") as file:
            answer = given["name"].encode() in file.read().split(b"\\0")
    except OSError:
        pass
"""
    pid, name = lab.host.witness.pid, lab.host.witness_name
    reached: bool = await probe(sandbox, code, pid=pid, name=name)
    return reached
