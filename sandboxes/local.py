"""The `local` provider: bubblewrap, without privileges even where we have all of them.

It fails closed: what this host does not allow is said when the provider is entered, with what to do about it, and a
sandbox that would be weaker than its spec is refused.
"""

import json
import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from moonmill.sandboxes import bubblewrap, cgroups, seccomp
from moonmill.sandboxes.bundle import compiled
from moonmill.sandboxes.errors import SandboxSpecError, SandboxUnavailableError
from moonmill.sandboxes.spawn import Child, child
from moonmill.sandboxes.specs import check_spec
from moonmill.sandboxes.supervised import Setup, SupervisedSandbox, supervised
from moonmill.sandboxes.types import MIB, SandboxLimits, SandboxSpec

_READY_SECONDS = 30.0
_END_SECONDS = 2.0
"""A first process that has not ended by then was stopped: ending takes a millisecond, and the rest is the kernel's."""
_NOBODY = 65534
_KERNEL_OF_PIDS = (5, 14)
"""Since this kernel the limit of processes counts those of a user namespace alone."""
_NO_GROUPS = (
    "cannot be enforced, because no control group can be made here: start this with `systemd-run --user --scope -p "
    "Delegate=yes`, or as root, or use the docker provider"
)
_TAKEN = frozenset(
    ("", "bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr", "var")
)
"""Top folders that are there already, or would hide them."""


class LocalProvider:
    """Sandboxes on this machine, of its own programs. See `SandboxProvider`."""

    name = "local"

    def __init__(self) -> None:
        self._bwrap: list[str] = []
        self._options: list[str] = []
        self._python = ""
        self._program = b""
        self._groups: cgroups.Groups | None = None

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._find)
        async with self.open(SandboxSpec()) as sandbox:
            await sandbox.exec(["true"])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bwrap = []

    def enforces(self) -> Mapping[str, str]:
        """As `SandboxProvider.enforces`."""
        groups = self._groups
        means = {
            "network": "a network namespace with nothing but its own loopback",
            "files": "a mount namespace: /usr and a few files of /etc, read-only",
            "disk": "tmpfs of that size for each of the workdir, /tmp and /dev/shm",
            "processes": "a namespace of its own; all end with its first process",
            "user": f"an unprivileged user without capabilities (on the host uid {self._uid()})",
            "secrets": "an environment of its own",
            "pids": "RLIMIT_NPROC in a user namespace" if _kernel() >= _KERNEL_OF_PIDS else "",
            "memory": f"control groups, version {groups.version}"
            if groups
            else "the private memory of each process alone (RLIMIT_DATA)",
            "memory of all": f"control groups, version {groups.version}" if groups else "",
            "cpus": f"control groups, version {groups.version}" if groups and "cpu" in groups.controllers else "",
            "system calls": "a seccomp filter" if seccomp.program() else "",
        }
        return {promise: how for promise, how in means.items() if how}

    def require(self, spec: SandboxSpec) -> None:
        """As `SandboxProvider.require`."""
        check_spec(spec)
        if spec.image is not None:
            raise SandboxSpecError(
                f"the local provider has no images, and the spec's is {spec.image!r}: leave it out for this machine's "
                "programs, or use the docker provider"
            )
        if spec.network != "none":
            raise SandboxSpecError("the local provider opens no network (network: open): use the docker provider")
        if spec.user not in (None, "user", str(bubblewrap.UID)):
            raise SandboxSpecError(f"the local provider has one user, `user`, and the spec's is {spec.user!r}")
        path = PurePosixPath(spec.workdir)
        if not path.is_absolute() or ".." in path.parts or "".join(path.parts[1:2]) in _TAKEN:
            raise SandboxSpecError(f"workdir: {spec.workdir!r} cannot be a folder of its own: take /workspace, say")
        enforced = self.enforces()
        if "pids" not in enforced:
            raise SandboxSpecError(
                f"limits.pids needs Linux {'.'.join(map(str, _KERNEL_OF_PIDS))} or newer, and this is "
                f"{platform.release()}: use the docker provider"
            )
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        if most != resource.RLIM_INFINITY and spec.limits.pids >= most:  # the supervisor is one
            told = f"limits.pids is {spec.limits.pids}, and this process may ask for {most} (ulimit -Hu)"
            raise SandboxSpecError(told)
        if spec.limits.cpus is not None and "cpus" not in enforced:
            raise SandboxSpecError(f"limits.cpus: {spec.limits.cpus:g} {_NO_GROUPS}")

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[SupervisedSandbox]:
        """As `SandboxProvider.open`."""
        self.require(spec)
        if not self._bwrap:
            raise SandboxUnavailableError("the local provider is used outside of its `async with LocalProvider()`")
        async with self._group() as group, self._process(spec) as (process, pid):
            if group is not None:
                await _enter(group, spec.limits, pid)  # while the supervisor gets ready: it takes the kernel some time
            rlimits = {"RLIMIT_NPROC": spec.limits.pids + 1}  # the supervisor is one
            if group is None:
                rlimits["RLIMIT_DATA"] = spec.limits.memory_mib * MIB
            setup = Setup(workdir=spec.workdir, env=bubblewrap.environment(spec), user=None, rlimits=rlimits, hide=True)
            try:
                async with supervised(
                    process.stream,
                    setup,
                    spec.files,
                    name="local sandbox",
                    lifetime=spec.limits.lifetime,
                    ready_seconds=_READY_SECONDS,
                    oom_kills=partial(_oom_kills, group),
                ) as sandbox:
                    yield sandbox
            except SandboxUnavailableError as e:
                if said := process.last_words():
                    raise SandboxUnavailableError(f"{e}: {said}{_advice(said)}") from e
                raise

    @asynccontextmanager
    async def _group(self) -> AsyncIterator[cgroups.Group | None]:
        """A control group for a sandbox, where there are any: not made yet, and removed in the end."""
        group = self._groups.new() if self._groups else None
        try:
            yield group
        finally:
            if group is not None:
                with anyio.CancelScope(shield=True):
                    await group.remove()

    @asynccontextmanager
    async def _process(self, spec: SandboxSpec) -> AsyncIterator[tuple[Child, int]]:
        """The started sandbox, and where bubblewrap writes the supervisor's process number."""
        files = bubblewrap.Files()
        with closing(files):
            pid, theirs = files.pipe()
            try:
                argv = self._command_line(spec, files, ["--info-fd", theirs])
                env = {"PATH": bubblewrap.PATH, "LANG": "C.UTF-8"}
                # Both ends: were we killed, bubblewrap could not write to the one, and would leave its child waiting.
                async with child(argv, env=env, end_seconds=_END_SECONDS, pass_fds=[*files.fds, pid]) as process:
                    files.close()
                    yield process, pid
            finally:
                os.close(pid)

    def _command_line(self, spec: SandboxSpec, files: bubblewrap.Files, options: list[str]) -> list[str]:
        return bubblewrap.command_line(
            spec,
            files,
            bwrap=self._bwrap,
            options=[*self._options, *options],
            program=self._program,
            python=[self._python, "-I", "-S"],
            seccomp=seccomp.program(),
        )

    def _find(self) -> None:
        """Find what a sandbox is made with on this host."""
        if platform.system() != "Linux":
            raise SandboxUnavailableError("the local provider needs Linux: use the docker provider")
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxUnavailableError(
                "the local provider needs bubblewrap, and there is no program bwrap on the PATH: apt-get install "
                "bubblewrap (dnf, pacman, apk: bubblewrap); or use another provider"
            )
        self._bwrap = [bwrap]
        if os.geteuid() == 0:
            # As root, what root alone may read could be seen in the sandbox, and its files would be root's.
            setpriv = shutil.which("setpriv")
            if setpriv is None:
                raise SandboxUnavailableError(
                    "as root, the local provider gives its rights up by setpriv, which is not on the PATH: install "
                    "util-linux, or run as somebody else"
                )
            self._bwrap = [setpriv, f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--", bwrap]
        try:
            told = subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=_READY_SECONDS).stdout
        except (OSError, subprocess.TimeoutExpired) as e:
            raise SandboxUnavailableError(f"the local provider needs bubblewrap, and {bwrap} cannot be run: {e}") from e
        self._options = ["--disable-userns"] if "--disable-userns" in told else []
        self._python, self._program = compiled()
        self._groups = cgroups.find()

    def _uid(self) -> int:
        return _NOBODY if os.geteuid() == 0 else os.geteuid()


async def _enter(group: cgroups.Group, limits: SandboxLimits, info: int) -> None:
    """Make a control group for a supervisor, whose number bubblewrap writes to `info`, before it starts anything."""
    try:
        await anyio.to_thread.run_sync(group.limit, limits)
        told = b""
        with anyio.move_on_after(_READY_SECONDS) as scope:
            while b"}" not in told:
                await anyio.wait_readable(info)
                more = os.read(info, 4096)
                if not more:
                    return  # bubblewrap has ended: why, its stream tells
                told += more
            await anyio.to_thread.run_sync(group.add, int(json.loads(told)["child-pid"]))
        if scope.cancelled_caught:
            raise SandboxUnavailableError(f"bubblewrap did not make a sandbox in {_READY_SECONDS:g} s")
    except ProcessLookupError:  # so has what it started
        pass
    except OSError as e:
        raise SandboxUnavailableError(f"no control group could be made for a sandbox: {e}") from e


async def _oom_kills(group: cgroups.Group | None) -> int:
    return 0 if group is None else await anyio.to_thread.run_sync(group.oom_kills)


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _advice(said: str) -> str:
    """What to do about bubblewrap's complaint."""
    if "_ctypes" in said:
        return " (apt-get install python3: python3-minimal is not enough)"
    if not re.search(r"bwrap: .*(namespace|permitted|denied|uid map)", said):
        return ""
    if _switched_on("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"):
        return (
            " (AppArmor keeps bubblewrap from making user namespaces here: give /usr/bin/bwrap a profile with "
            "`userns,` or, for all programs, sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; or use the "
            "docker provider)"
        )
    return (
        " (this host does not let unprivileged users make user namespaces: sysctl -w user.max_user_namespaces=15000 "
        "and kernel.unprivileged_userns_clone=1; a container must be started with --security-opt seccomp=unconfined "
        "--security-opt apparmor=unconfined --security-opt systempaths=unconfined; or use the docker provider)"
    )


def _switched_on(path: str) -> bool:
    try:
        return Path(path).read_text().strip() == "1"
    except OSError:
        return False
