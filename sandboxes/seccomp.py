"""The system calls that a sandbox has no use for, as a filter for `bwrap --seccomp`.

Namespaces and an unprivileged user bound what a call can reach; this makes the kernel smaller for who tries. Refused
are calls that reach around the namespaces (vsock, keyrings, io_uring, bpf), that use up what the whole machine has few
of (aio), that see into other processes, that make new namespaces, and that are the system administrator's. All else
passes: this is no list of what programs may need.

A filter is a program for the kernel's classic BPF machine over (number, architecture, arguments); see the kernel's
Documentation/userspace-api/seccomp_filter.rst.
"""

import errno
import platform
import struct

_INSTRUCTION = struct.Struct("=HBBI")
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_OR_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where they stand in what the program is given. The lower half of an argument comes first on the machines here."""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

REFUSED = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "process_madvise": 440,
        "pidfd_getfd": 438, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "mount": 165,
        "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429, "fsopen": 430,
        "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246,
        "kexec_file_load": 320, "reboot": 169, "swapon": 167, "swapoff": 168, "syslog": 103, "acct": 163,
        "quotactl": 179, "quotactl_fd": 443, "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305,
        "adjtimex": 159, "sethostname": 170, "setdomainname": 171, "lookup_dcookie": 212, "vhangup": 153,
        "fanotify_init": 300, "fanotify_mark": 301, "move_pages": 279, "migrate_pages": 256, "memfd_secret": 447,
        "setns": 308, "unshare": 272, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134,
        "io_setup": 206, "open_tree_attr": 467,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "process_madvise": 440,
        "pidfd_getfd": 438, "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "mount": 40,
        "umount2": 39, "pivot_root": 41, "chroot": 51, "open_tree": 428, "move_mount": 429, "fsopen": 430,
        "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "name_to_handle_at": 264,
        "open_by_handle_at": 265, "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104,
        "kexec_file_load": 294, "reboot": 142, "swapon": 224, "swapoff": 225, "syslog": 116, "acct": 89,
        "quotactl": 60, "quotactl_fd": 443, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266,
        "adjtimex": 171, "sethostname": 161, "setdomainname": 162, "lookup_dcookie": 18, "vhangup": 58,
        "fanotify_init": 262, "fanotify_mark": 263, "move_pages": 239, "migrate_pages": 238, "memfd_secret": 447,
        "setns": 268, "unshare": 97, "io_setup": 0, "open_tree_attr": 467,
    },
}  # fmt: skip
_EXAMINED = {
    "x86_64": {"socket": 41, "socketpair": 53, "clone": 56, "clone3": 435, "ioctl": 16},
    "aarch64": {"socket": 198, "socketpair": 199, "clone": 220, "clone3": 435, "ioctl": 29},
}
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""From here on, x86_64 has its calls a second time, for 32-bit pointers."""
NEW_NAMESPACES = 0x7E020000
"""All CLONE_NEW flags."""
FAMILIES = (1, 2, 10)
"""Of sockets that may be: unix, inet and inet6."""
TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into a terminal."""


def program(machine: str = "") -> bytes | None:
    """The filter for a machine, this one by default; None where none is written for it."""
    machine = machine or platform.machine()
    if machine not in REFUSED:
        return None
    calls = _EXAMINED[machine]
    code = [
        _load(_ARCHITECTURE),
        _INSTRUCTION.pack(_JUMP_EQUAL, 1, 0, _AUDIT_ARCHITECTURE[machine]),
        _return(_KILL),
        _load(_NUMBER),
    ]
    if machine == "x86_64":
        code += _if(_JUMP_GREATER_OR_EQUAL, _X32, _refuse(errno.ENOSYS))
    # Its flags are in memory, where no filter can look; without it, programs fall back to `clone`.
    code += _if(_JUMP_EQUAL, calls["clone3"], _refuse(errno.ENOSYS))
    for number in REFUSED[machine].values():
        code += _if(_JUMP_EQUAL, number, _refuse(errno.EPERM))
    code += _examine(calls["clone"], 0, _if(_JUMP_SET, NEW_NAMESPACES, _refuse(errno.EPERM)))
    code += _examine(
        calls["ioctl"],
        1,
        [line for request in TERMINAL_REQUESTS for line in _if(_JUMP_EQUAL, request, _refuse(errno.EPERM))],
    )
    allowed = [line for family in FAMILIES for line in _if(_JUMP_EQUAL, family, _ALLOW)]
    for name in ("socket", "socketpair"):
        code += _examine(calls[name], 0, [*allowed, _return(_refuse(errno.EAFNOSUPPORT))])
    return b"".join([*code, _return(_ALLOW)])


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(_LOAD, 0, 0, offset)


def _return(value: int) -> bytes:
    return _INSTRUCTION.pack(_RETURN, 0, 0, value)


def _refuse(number: int) -> int:
    return _ERRNO | number


def _if(test: int, value: int, result: int) -> list[bytes]:
    """Return `result` where what is loaded passes the test."""
    return [_INSTRUCTION.pack(test, 0, 1, value), _return(result)]


def _examine(call: int, argument: int, then: list[bytes]) -> list[bytes]:
    """Do `then` with an argument of a call; other calls pass by. The number is loaded before and after it."""
    body = [_load(_ARGUMENTS + 8 * argument), *then, _load(_NUMBER)]
    return [_INSTRUCTION.pack(_JUMP_EQUAL, 0, len(body), call), *body]
