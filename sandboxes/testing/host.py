"""The host around a sandbox, as far as nobody inside may get at it: files, a process, sockets, a key.

All of it could be reached by any program of this host, so that nothing but the sandbox keeps it away.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from moonmill.sandboxes.testing.expect import PREFIX

KEY_NAME = "MOONMILL_CHECK_API_KEY"
"""The environment variable that is nobody's business inside."""
_PUBLIC_FOLDERS = ("/var/tmp", "/dev/shm")
"""Beside the folder for temporary files."""
_ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation: asking for the way there sends nothing."""


class Host:
    """What is there while the check runs. To be used as a context."""

    def __init__(self) -> None:
        self.key = f"key-{secrets.token_hex(16)}"
        """The value of `KEY_NAME`, and the content of the files."""
        self.folders: list[Path] = []
        """Each holds a file `secret` that everybody on this host may read, and everybody may write into it."""
        self.tcp = socket.socket()
        self.udp = socket.socket(type=socket.SOCK_DGRAM)
        self.unix = socket.socket(socket.AF_UNIX)
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract_name = f"{PREFIX}{secrets.token_hex(8)}"
        self.witness: subprocess.Popen[bytes]
        """A process with the key in its environment."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for parent in (tempfile.gettempdir(), *_PUBLIC_FOLDERS):
                self._add_folder(parent, stack)
            for each in (self.tcp, self.udp, self.unix, self.abstract):
                stack.enter_context(each)
                each.setblocking(False)
            self.tcp.bind(("", 0))
            self.udp.bind(("", 0))
            self.unix.bind(str(self.unix_path))
            self.unix_path.chmod(0o777)
            self.abstract.bind(f"\0{self.abstract_name}")
            for listener in (self.tcp, self.unix, self.abstract):
                listener.listen(64)
            self._set_key(stack)
            self.witness = stack.enter_context(_witness(self.witness_name))
            stack.callback(self.witness.stdin.close if self.witness.stdin else lambda: None)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def witness_name(self) -> str:
        """An argument of the witness."""
        return f"witness-{self.abstract_name}"

    @property
    def unix_path(self) -> Path:
        return self.folders[0] / "socket"

    def addresses(self) -> list[str]:
        """Where the host's programs reach it."""
        found = ["127.0.0.1"]
        with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as way:
            way.connect(_ELSEWHERE)
            found.append(way.getsockname()[0])
        return found

    def visited(self) -> list[str]:
        """Which of the sockets somebody has got through to, since this was last asked."""
        found = []
        for name, listener in (("tcp", self.tcp), ("unix", self.unix), ("abstract unix", self.abstract)):
            with suppress(BlockingIOError):
                listener.accept()[0].close()
                found.append(name)
        with suppress(BlockingIOError):
            self.udp.recv(100)
            found.append("udp")
        return found

    def _add_folder(self, parent: str, stack: ExitStack) -> None:
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError:
            return
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o777)
        (folder / "secret").write_text(self.key)
        (folder / "secret").chmod(0o644)
        self.folders.append(folder)

    def _set_key(self, stack: ExitStack) -> None:
        before = os.environ.get(KEY_NAME)
        os.environ[KEY_NAME] = self.key
        if before is None:
            stack.callback(os.environ.pop, KEY_NAME, None)
        else:
            stack.callback(os.environ.__setitem__, KEY_NAME, before)


def _witness(name: str) -> "subprocess.Popen[bytes]":
    """A process that waits until its stdin is closed."""
    return subprocess.Popen(["/bin/sh", "-c", "read x", name], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
