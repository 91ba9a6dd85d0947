"""The filter, interpreted here instruction by instruction, as the kernel would."""

import errno
import platform
import struct

import pytest

from moonmill.sandboxes import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
X86, ARM = 0xC000003E, 0xC00000B7


def refused(number: int) -> int:
    return 0x00050000 | number


def answer(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter says of a system call."""
    code = seccomp.program(machine)
    assert code is not None
    known = {"x86_64": X86, "aarch64": ARM}[machine] if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, known, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = list(struct.iter_unpack("=HBBI", code))
    accumulator = at = 0
    while True:
        operation, when_true, when_false, value = lines[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x06:
            return value
        else:
            tests = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
            at += when_true if tests[operation] else when_false


@pytest.mark.parametrize(("machine", "read", "ptrace", "clone3"), [("x86_64", 0, 101, 435), ("aarch64", 63, 117, 435)])
def test_calls_pass_unless_they_are_refused(machine: str, read: int, ptrace: int, clone3: int) -> None:
    assert answer(machine, read) == ALLOW
    assert answer(machine, ptrace) == refused(errno.EPERM)
    assert answer(machine, clone3) == refused(errno.ENOSYS), "programs then use clone"


@pytest.mark.parametrize(
    ("machine", "clone", "socket", "socketpair", "ioctl"), [("x86_64", 56, 41, 53, 16), ("aarch64", 220, 198, 199, 29)]
)
def test_some_calls_are_refused_for_their_arguments(
    machine: str, clone: int, socket: int, socketpair: int, ioctl: int
) -> None:
    threads, new_user = 0x3D0F00, 0x10000000
    assert answer(machine, clone, threads) == ALLOW
    assert answer(machine, clone, threads | new_user) == refused(errno.EPERM)
    for family, wanted in ((1, ALLOW), (2, ALLOW), (10, ALLOW), (16, None), (40, None), (38, None)):
        for call in (socket, socketpair):
            assert answer(machine, call, family) == (wanted or refused(errno.EAFNOSUPPORT))
    assert answer(machine, ioctl, 0, 0x5401) == ALLOW
    assert answer(machine, ioctl, 0, 0x5412) == refused(errno.EPERM)


def test_calls_of_another_architecture_are_killed() -> None:
    assert answer("x86_64", 0, architecture=0x40000003) == KILL
    assert answer("x86_64", 0x40000000) == refused(errno.ENOSYS), "and those of x32 do not exist"


def test_there_is_one_for_this_machine_and_none_for_strange_ones() -> None:
    assert seccomp.program() == seccomp.program(platform.machine())
    assert seccomp.program("riscv64") is None
