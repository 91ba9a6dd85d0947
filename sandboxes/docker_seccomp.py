"""The filter of `moonmill.sandboxes.seccomp` as a profile for docker.

It takes the place of docker's own, which up to version 22 lets sockets to the hypervisor (vsock) through, by which a
container without a network is not without one, and up to version 24 io_uring.
"""

import errno
import json
from functools import cache
from typing import Any

from moonmill.sandboxes import seccomp

_NAMESPACE_FLAGS = [1 << bit for bit in range(32) if seccomp.NEW_NAMESPACES >> bit & 1]


@cache
def profile() -> str:
    """The profile, in JSON."""
    refused = sorted({name for names in seccomp.REFUSED.values() for name in names})
    families = seccomp.FAMILIES
    rules = [
        _refuse(refused),
        _refuse(["clone3"], errno.ENOSYS),
        *(_refuse(["clone"], argument=(0, "SCMP_CMP_MASKED_EQ", flag, flag)) for flag in _NAMESPACE_FLAGS),
        *(_refuse(["ioctl"], argument=(1, "SCMP_CMP_EQ", request)) for request in seccomp.TERMINAL_REQUESTS),
        *(
            _refuse(["socket", "socketpair"], errno.EAFNOSUPPORT, (0, "SCMP_CMP_EQ", family))
            for family in range(max(families))
            if family not in families
        ),
        _refuse(["socket", "socketpair"], errno.EAFNOSUPPORT, (0, "SCMP_CMP_GT", max(families))),
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _refuse(names: list[str], number: int = errno.EPERM, argument: tuple[Any, ...] | None = None) -> dict[str, Any]:
    """A rule. The argument is told by its place, a comparison, what it is compared with, and what is to come out."""
    rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    if argument:
        place, comparison, *values = argument
        rule["args"] = [{"index": place, "op": comparison, "value": values[0], "valueTwo": (*values, 0)[1]}]
    return rule
