"""Providers that claim what they do not do, so that the self-check can be seen to notice."""

import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tarfile import open as open_tar
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

from moonmill.sandboxes import archives, bubblewrap, bundle, local, sockets
from moonmill.sandboxes.local import LocalProvider
from moonmill.sandboxes.supervised import Setup, SupervisedSandbox
from moonmill.sandboxes.testing import PROMISES
from moonmill.sandboxes.types import SandboxSpec
from moonmill.sandboxes.unsafe import UnsafeSubprocessProvider


class Pretender(UnsafeSubprocessProvider):
    """No protection at all, and every promise."""

    name = "pretender"

    def enforces(self) -> Mapping[str, str]:
        return dict.fromkeys(PROMISES, "nothing")


class Weakened(LocalProvider):
    """`local` without one of its protections, which it goes on claiming.

    Args:
        without: a name in `PROTECTIONS`.
    """

    def __init__(self, without: str) -> None:
        super().__init__()
        self._without = without

    def enforces(self) -> Mapping[str, str]:
        return dict.fromkeys(PROMISES, "what it is without") | dict(super().enforces())

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[SupervisedSandbox]:
        with self._taken_away():
            async with super().open(spec) as sandbox:
                yield sandbox

    def _find(self) -> None:
        with self._taken_away():
            super()._find()
        if self._without == "memory":
            self._groups = None

    def _command_line(self, spec: SandboxSpec, files: bubblewrap.Files, options: list[str]) -> list[str]:
        argv = super()._command_line(spec, files, options)
        for was, becomes in _OPTIONS.get(self._without, ()):
            argv = _replaced(argv, was, becomes)
        return argv

    @contextmanager
    def _taken_away(self) -> Iterator[None]:
        if self._without in _SOURCE:
            text, (was, becomes) = bundle.source(), _SOURCE[self._without]
            assert was in text
            with patch.object(bundle, "source", lambda: text.replace(was, becomes)):
                yield
        elif self._without in _PATCHES:
            with patch.object(*_PATCHES[self._without]):
                yield
        else:
            yield


def _replaced(argv: list[str], was: Sequence[str], becomes: Sequence[str]) -> list[str]:
    """`argv` with every run of options like `was` (None is any word) replaced."""
    found, at, times = [], 0, 0
    while at < len(argv):
        here = argv[at : at + len(was)]
        if len(here) == len(was) and all(w in ("?", h) for w, h in zip(was, here, strict=True)):
            found += becomes
            at, times = at + len(was), times + 1
        else:
            found.append(argv[at])
            at += 1
    assert times, f"{was} is not among bubblewrap's options"
    return found


def _unlimited(**fields: Any) -> Setup:
    return Setup(**{**fields, "rlimits": {}})


def _visible(**fields: Any) -> Setup:
    return Setup(**{**fields, "hide": False})


def _whole_environment(spec: SandboxSpec) -> Mapping[str, str]:
    return {**os.environ, "PATH": bubblewrap.PATH, **spec.env}


def _trusting_unpack(archive: bytes, path: str, target: Path, stop: object) -> None:
    import io

    target.mkdir(parents=True, exist_ok=True)
    with open_tar(fileobj=io.BytesIO(archive)) as opened:
        opened.extractall(target, filter="fully_trusted")


class _Forgetful(WeakSet[socket.socket]):
    def add(self, item: socket.socket) -> None: ...


_OPTIONS: Mapping[str, Sequence[tuple[Sequence[str], Sequence[str]]]] = {
    "network": [(["--unshare-net"], [])],
    "processes": [(["--unshare-pid"], []), (["--as-pid-1"], [])],
    "tmp": [(["--perms", "1777", "--size", "?", "--tmpfs", "/tmp"], ["--bind", "/tmp", "/tmp"])],
    "read-only": [(["--remount-ro", "/"], [])],
    "disk": [(["--size", "?"], [])],
    "user": [(["--cap-drop", "ALL"], ["--cap-add", "ALL"])],
    "seccomp": [(["--seccomp", "?"], []), (["--disable-userns"], [])],
}
_SOURCE: Mapping[str, tuple[str, str]] = {
    "killing trees": ("started_since(call.before, others)", "{call.pid} & {*living(all_processes())}"),
    "killing at all": ("self._end(call)", "self._finish(call, 0)"),
    "ending with us": (
        "def _leave(self) -> None:",
        "def _leave(self) -> None:\n        if os.path.exists('/workspace/file'): time.sleep(8)",
    ),
    "closing before": (
        "        os.setsid()\n",
        "        os.setsid()\n        prctl(PR_SET_DUMPABLE, 1)\n        time.sleep(0.01)\n",
    ),
    "kinds of files": (
        "def _refuse_irregular(info: os.stat_result) -> None:",
        "def _refuse_irregular(info): return\n\ndef _unused(info):",
    ),
}
_PATCHES: Mapping[str, tuple[Any, str, object]] = {
    "pids": (local, "Setup", _unlimited),
    "memory": (local, "Setup", _unlimited),
    "hiding": (local, "Setup", _visible),
    "secrets": (bubblewrap, "environment", _whole_environment),
    "archives": (archives, "unpack", _trusting_unpack),
    "forks": (sockets, "_kept", _Forgetful()),
}
PROTECTIONS = (*_OPTIONS, *_SOURCE, *_PATCHES)
