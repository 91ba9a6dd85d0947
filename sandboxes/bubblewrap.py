"""The command line of a bubblewrap sandbox: what of this machine can be seen in it, and how.

Seen are the programs under `/usr` and the few files of `/etc` that programs need, read-only. What can be written to is
in memory, of a limited size, and the sandbox's own. Nothing of the host's environment is passed on.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from moonmill.sandboxes.errors import SandboxUnavailableError
from moonmill.sandboxes.types import MIB, SandboxSpec

UID = 1000
"""Who commands run as, as they see it. On the host it is whoever started bubblewrap."""
PATH = "/usr/local/bin:/usr/bin:/bin"
PROGRAM = "/run/supervisor.pyc"
TEMPORARY = "/tmp"

_ETC = (
    "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf",
    "protocols", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14", "services",
)  # fmt: skip
_NAMESPACES = ("user", "ipc", "pid", "net", "uts", "cgroup-try")
_OWN = {
    "/etc/passwd": f"root:x:0:0::/root:/usr/sbin/nologin\nuser:x:{UID}:{UID}::{{workdir}}:/bin/sh\n",
    "/etc/group": f"root:x:0:\nuser:x:{UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}


class Files:
    """Contents that a sandbox gets, as file descriptors that bubblewrap can read once. Close it after the start.

    Its methods raise `SandboxUnavailableError` where there can be no more descriptors.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.fds: list[int] = []

    def add(self, content: bytes) -> str:
        """The number of a descriptor that reads as `content`."""
        with _descriptors():
            fd = os.memfd_create("moonmill")
            self._stack.callback(os.close, fd)
            os.write(fd, content)
            os.lseek(fd, 0, os.SEEK_SET)
        self.fds.append(fd)
        return str(fd)

    def pipe(self) -> tuple[int, str]:
        """A pipe that bubblewrap may write to: our end, which stays open, and the number of its own."""
        with _descriptors():
            ours, theirs = os.pipe()
        self._stack.callback(os.close, theirs)
        self.fds.append(theirs)
        return ours, str(theirs)

    def close(self) -> None:
        self._stack.close()


@contextmanager
def _descriptors() -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise SandboxUnavailableError(f"a sandbox cannot be given its files: {e.strerror} (ulimit -n)") from e


def command_line(
    spec: SandboxSpec,
    files: Files,
    *,
    bwrap: Sequence[str],
    options: Sequence[str],
    program: bytes,
    python: Sequence[str],
    seccomp: bytes | None,
    shown: Sequence[Path] = (),
) -> list[str]:
    """What starts the supervisor in a sandbox.

    Args:
        spec: what the sandbox is to be.
        files: gets what the sandbox is to be given.
        bwrap: what starts bubblewrap.
        options: further options of this version of bubblewrap.
        program: the supervisor, compiled.
        python: what runs it.
        seccomp: the filter of system calls.
        shown: further folders of the host that can be read.
    """
    size = str(spec.limits.disk_mib * MIB)
    argv = [*bwrap, *options, *(f"--unshare-{name}" for name in _NAMESPACES), "--as-pid-1", "--new-session"]
    argv += ["--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox", "--cap-drop", "ALL"]
    argv += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            argv += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    for folder in shown:
        argv += ["--ro-bind", str(folder), str(folder)]
    for name in _ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for own, text in _OWN.items():
        argv += ["--perms", "0644", "--ro-bind-data", files.add(text.format(workdir=spec.workdir).encode()), own]
    argv += ["--perms", "0644", "--ro-bind-data", files.add(program), PROGRAM]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/dev/shm", TEMPORARY, spec.workdir):
        argv += ["--perms", "0755" if place == spec.workdir else "1777", "--size", size, "--tmpfs", place]
    argv += ["--dir", "/var", "--symlink", "../tmp", "/var/tmp"]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    if seccomp is not None:
        argv += ["--seccomp", files.add(seccomp)]
    return [*argv, "--", *python, PROGRAM]


def environment(spec: SandboxSpec) -> Mapping[str, str]:
    """The environment of commands."""
    own = {"PATH": PATH, "HOME": spec.workdir, "USER": "user", "LANG": "C.UTF-8", "TMPDIR": TEMPORARY}
    return {**own, **spec.env}
