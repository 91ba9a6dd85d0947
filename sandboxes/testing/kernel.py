"""System calls that open the kernel to attacks, and that no honest program needs here, are refused."""

import platform

from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import NotShownError, Topic
from moonmill.sandboxes.testing.expect import equal, probe, that

topic = Topic("kernel")

_NUMBERS = {
    "x86_64": {
        "add_key": 248,
        "bpf": 321,
        "clone": 56,
        "clone3": 435,
        "io_setup": 206,
        "io_uring_setup": 425,
        "keyctl": 250,
        "open_by_handle_at": 304,
        "perf_event_open": 298,
        "userfaultfd": 323,
    },
    "aarch64": {
        "add_key": 217,
        "bpf": 280,
        "clone": 220,
        "clone3": 435,
        "io_setup": 0,
        "io_uring_setup": 425,
        "keyctl": 219,
        "open_by_handle_at": 265,
        "perf_event_open": 241,
        "userfaultfd": 282,
    },
}
"""By the machine's architecture."""
_FRAME = """
import errno, signal, struct
try:
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):
    libc = None
if libc is not None:
    call = given["calls"].get
    libc.syscall.restype = ctypes.c_long
{code}
    answer = "done" if done >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
"""
_CLONE = """
    done = libc.syscall(call("clone"), 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if done == 0:
        os._exit(0)
"""
_CLONE3 = """
    asked = struct.pack("<11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    done = libc.syscall(call("clone3"), asked, len(asked))
    if done == 0:
        os._exit(0)
"""
_MOUNT = """
    os.makedirs("mounted", exist_ok=True)
    done = libc.mount(b"tmpfs", b"mounted", b"tmpfs", 0, None)
    if done == 0:
        libc.umount2(b"mounted", 2)
"""
_BPF = """
    asked = struct.pack("<4I", 1, 4, 4, 1) + bytes(104)  # a map
    done = libc.syscall(call("bpf"), 0, asked, len(asked))
"""
_PERF = """
    asked = struct.pack("<IIQQQQQ", 1, 128, 0, 0, 0, 0, 0x61) + bytes(80)  # of this process, without the kernel
    done = libc.syscall(call("perf_event_open"), asked, 0, -1, -1, 0)
"""
_USERFAULTFD = """
    done = libc.syscall(call("userfaultfd"), 1)
"""
_AIO = """
    context = ctypes.c_ulong(0)
    done = libc.syscall(call("io_setup"), 8, ctypes.byref(context))
"""
_BY_HANDLE = """
    done = libc.syscall(call("open_by_handle_at"), 3, struct.pack("<II", 8, 1) + bytes(64), 0)
"""
_TRACE = """
    pid = os.fork()
    if pid == 0:
        signal.pause()
    done = libc.ptrace(0x4206, pid, None, None)  # PTRACE_SEIZE
    os.kill(pid, signal.SIGKILL)
"""
_REFUSALS = ("EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "EOPNOTSUPP", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT", "ENOSPC")
"""ENOSPC is what `unshare` says where no namespaces may be made."""


@topic.inside("there are no sockets to the machine that hosts this one (AF_VSOCK)", promise="system calls")
async def vsock(sandbox: Sandbox) -> None:
    await _is_refused(sandbox, "    done = libc.socket(40, 1, 0)")


@topic.inside("io_uring is refused", promise="system calls")
async def io_uring(sandbox: Sandbox) -> None:
    await _is_refused(sandbox, '    done = libc.syscall(call("io_uring_setup"), 1, ctypes.create_string_buffer(120))')


@topic.inside("the kernel's keyrings are refused", promise="system calls")
async def keyrings(sandbox: Sandbox) -> None:
    await _is_refused(sandbox, '    done = libc.syscall(call("keyctl"), 0, -3, 1)')
    code = '    done = libc.syscall(call("add_key"), b"user", b"moonmill-check", b"x", 1, -2)'
    await _is_refused(sandbox, code)


@topic.inside("further user namespaces are refused", promise="system calls")
async def user_namespaces(sandbox: Sandbox) -> None:
    await _is_refused(sandbox, "    done = libc.unshare(0x10000000)")
    for code in (_CLONE, _CLONE3):
        await _is_refused(sandbox, code)


@topic.inside("mounting is refused", promise="system calls")
async def mounting(sandbox: Sandbox) -> None:
    await _is_refused(sandbox, _MOUNT)
    await _is_refused(sandbox, "    done = libc.unshare(0x00020000)")  # CLONE_NEWNS


@topic.inside("bpf, perf events, userfaultfd, aio and files by their handles are refused", promise="system calls")
async def rare_calls(sandbox: Sandbox) -> None:
    for code in (_BPF, _PERF, _USERFAULTFD, _AIO, _BY_HANDLE):
        await _is_refused(sandbox, code)


@topic.inside("processes do not trace each other", promise="system calls")
async def tracing(sandbox: Sandbox) -> None:
    await _is_refused(sandbox, _TRACE)


@topic.inside("raw packets are refused", promise="system calls")
async def raw_packets(sandbox: Sandbox) -> None:
    await _is_refused(sandbox, "    done = libc.socket(17, 3, 0)")  # AF_PACKET
    await _is_refused(sandbox, "    done = libc.socket(2, 3, 1)")  # ICMP


@topic.inside("settings of the kernel cannot be written", promise="system calls")
async def settings(sandbox: Sandbox) -> None:
    code = """
answer = []
for path in given["paths"]:
    try:
        os.close(os.open(path, os.O_WRONLY))
        answer.append(path)
    except OSError:
        pass
"""
    names = ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "vm/overcommit_memory", "fs/suid_dumpable")
    paths = [f"/proc/sys/{name}" for name in names]
    more = ["/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/power/state", "/proc/kcore", "/dev/mem"]
    equal("what can be written", await probe(sandbox, code, paths=[*paths, *more]), [])


async def _is_refused(sandbox: Sandbox, code: str) -> None:
    """Make a system call: it has to fail because it is not permitted, or not there."""
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise NotShownError(f"the numbers of system calls on {machine} are not known")
    answer = await probe(sandbox, _FRAME.format(code=code.strip("\n")), calls=_NUMBERS[machine])
    if answer is None:
        raise NotShownError("python3 inside has no ctypes")
    that(answer in _REFUSALS, f"`{code.strip()}` is not refused: {answer}")
