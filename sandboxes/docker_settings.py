"""What a container of ours may do, as arguments for docker-py, and what of a spec cannot be had.

Nothing is left to the defaults of a daemon or an image that would open the box: no health checks, entry points, volumes
or users of the image's, no writable place that has no size, no capabilities but those by which the supervisor, which is
root, becomes somebody else and ends what it has started.
"""

import math
import posixpath
from collections.abc import Mapping
from typing import Any

from moonmill.sandboxes import docker_seccomp
from moonmill.sandboxes.docker_images import Image
from moonmill.sandboxes.errors import SandboxSpecError
from moonmill.sandboxes.specs import check_spec
from moonmill.sandboxes.types import MIB, SandboxSpec

UNPRIVILEGED = "1000"
"""Who runs commands where a spec names nobody."""
_SUPERVISOR_PIDS = 8
"""Beside what a sandbox may have: the supervisor, and what does things to files for it."""
_NO_WORKDIR = frozenset(("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys"))
_NO_WORKDIR_EITHER = frozenset(("/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/local/lib"))
"""An empty folder there would hide the image's programs."""
_CAPABILITIES = ["KILL", "SETGID", "SETUID"]


def refuse_what_cannot_be(spec: SandboxSpec, info: Mapping[str, Any], has_bridge: bool) -> None:
    """Raise `SandboxSpecError` where a daemon, which says `info` of itself, cannot honour a spec."""
    check_spec(spec)
    limits = spec.limits
    host = f"the Docker daemon of {info.get('Name', 'this host')}"
    for name, flag in (("memory_mib", "MemoryLimit"), ("pids", "PidsLimit")):
        if not info.get(flag):
            raise SandboxSpecError(f"{host} cannot limit limits.{name}: its kernel or cgroups lack it (docker info)")
    if limits.cpus is not None and not info.get("CpuCfsQuota"):
        raise SandboxSpecError(f"{host} cannot limit limits.cpus: its kernel lacks the CFS quota (docker info)")
    if spec.network == "open" and not has_bridge:
        raise SandboxSpecError(f"network is 'open', but {host} has no network named bridge")
    workdir = posixpath.normpath(spec.workdir)
    if not spec.workdir.startswith("/") or any(c in spec.workdir for c in ":,\0"):
        raise SandboxSpecError(f"workdir is {spec.workdir!r}, but should be an absolute path without ':' and ','")
    if workdir in _NO_WORKDIR | _NO_WORKDIR_EITHER or workdir.startswith(("/proc/", "/sys/", "/dev/")):
        raise SandboxSpecError(f"workdir is {spec.workdir!r}, where a docker sandbox cannot have a folder of its own")


def enforces(info: Mapping[str, Any]) -> dict[str, str]:
    """What holds in the sandboxes of a daemon that says `info` of itself, and by which means."""
    cgroup = f"cgroup v{info.get('CgroupVersion', 1)}"
    options = info.get("SecurityOptions") or ()
    filters = ["the seccomp filter of `local` in place of docker's"] if _has_seccomp(info) else []
    filters += ["AppArmor"] if "name=apparmor" in options else []
    holds = {
        "memory": f"{cgroup}, files in memory included"
        + ("" if info.get("SwapLimit") else "; what is swapped out is not counted"),
        "memory of all": cgroup,
        "pids": cgroup,
        "disk": "a tmpfs of its own size in each place that can be written to; the root is read-only",
        "cpus": f"{cgroup}, CFS quota",
        "network": "a network namespace with a loopback alone",
        "processes": "a PID namespace, which ends with its first process",
        "files": "an image's files alone, read-only",
        "secrets": "an environment of the image's and the spec's alone",
        "user": f"uid {UNPRIVILEGED}, no capabilities, no new privileges",
        "system calls": ", ".join(filters),
    }
    if not info.get("CpuCfsQuota"):
        holds["cpus"] = ""
    return {what: how for what, how in holds.items() if how}


def container(image: Image, argv: list[str], name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Arguments for docker-py's `create_container`: `argv` is what runs in it, as root, with its stdin open."""
    return {
        "image": image.id,
        "name": name,
        "entrypoint": argv,
        "command": [],
        "user": "0:0",
        "hostname": "sandbox",
        "working_dir": "/",
        "stdin_open": True,  # docker-py makes it end with the first who attaches
        "labels": {**labels},
        "healthcheck": {"test": ["NONE"]},
    }


def host(spec: SandboxSpec, image: Image, uid: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for docker-py's `HostConfig`; the workdir belongs to `uid`."""
    limits = spec.limits
    memory = limits.memory_mib * MIB
    settings: dict[str, Any] = {
        "network_mode": "bridge" if spec.network == "open" else "none",
        "read_only": True,
        "tmpfs": _writable(spec, image, uid),
        "shm_size": limits.disk_mib * MIB,
        "mem_limit": memory,
        "memswap_limit": memory,  # of both together: no swap
        "pids_limit": limits.pids + _SUPERVISOR_PIDS,
        "cap_drop": ["ALL"],
        "cap_add": _CAPABILITIES,
        "security_opt": [
            "no-new-privileges",
            *([f"seccomp={docker_seccomp.profile()}"] if _has_seccomp(info) else []),
        ],
        "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],  # a core dump may be written by the host
        "log_config": {"Type": "none"},
        "ipc_mode": "private",
        "auto_remove": True,
        "init": False,
    }
    if str(info.get("CgroupVersion")) == "2":
        settings["cgroupns"] = "private"  # so that its own counters can be seen in it, and nobody else's
    if limits.cpus is not None:
        settings["nano_cpus"] = math.ceil(min(limits.cpus, float(info.get("NCPU", limits.cpus))) * 1e9)
    return settings


def _has_seccomp(info: Mapping[str, Any]) -> bool:
    return any(option.startswith("name=seccomp") for option in info.get("SecurityOptions") or ())


def _writable(spec: SandboxSpec, image: Image, uid: str) -> dict[str, str]:
    """The places that can be written to, apart from /dev/shm. Programs may be run where people put them."""
    size = f"size={spec.limits.disk_mib}m"
    places = dict.fromkeys(("/run", "/var/tmp", *image.volumes), f"rw,nosuid,nodev,noexec,{size},mode=1777")
    places["/tmp"] = f"rw,nosuid,nodev,exec,{size},mode=1777"
    places[posixpath.normpath(spec.workdir)] = f"rw,nosuid,nodev,exec,{size},uid={uid},gid={uid},mode=0755"
    return places
