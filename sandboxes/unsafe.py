"""`unsafe-subprocess`: no sandbox at all. Commands run on this machine, as whoever runs this.

For debugging an environment where nothing else can be had. It has the same interface, the same time-outs, and a folder
of its own that is removed in the end. Nothing keeps a command in that folder.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from moonmill.sandboxes.bundle import source
from moonmill.sandboxes.errors import SandboxSpecError
from moonmill.sandboxes.spawn import child
from moonmill.sandboxes.specs import check_spec
from moonmill.sandboxes.supervised import Setup, SupervisedSandbox, supervised
from moonmill.sandboxes.types import SandboxSpec

_READY_SECONDS = 30.0
_END_SECONDS = 10.0
"""It ends its commands before itself, and gives that up after less."""
_PREFIX = "moonmill-unsafe-"
_FOLDER = re.compile(rf"{_PREFIX}([0-9]+)-\w+")


class UnsafeSubprocessProvider:
    """Runs commands as plain processes of this machine. See `SandboxProvider`."""

    name = "unsafe-subprocess"

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(_sweep)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def enforces(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def require(self, spec: SandboxSpec) -> None:
        """Refuse what it would ignore, as far as a spec asks for more than the defaults."""
        check_spec(spec)
        if spec.image is not None:
            raise SandboxSpecError(f"{self.name} has no images, and the spec's is {spec.image!r}: it is this machine")
        if spec.user is not None:
            raise SandboxSpecError(f"{self.name} runs everything as you, and the spec's user is {spec.user!r}")
        if spec.limits.cpus is not None:
            raise SandboxSpecError(f"{self.name} limits nothing, and the spec's limits.cpus is {spec.limits.cpus:g}")

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[SupervisedSandbox]:
        """A folder of its own, in place of the spec's `workdir`."""
        self.require(spec)
        folder = await anyio.to_thread.run_sync(tempfile.mkdtemp, None, f"{_PREFIX}{os.getpid()}-")
        try:
            path = os.environ.get("PATH", os.defpath)
            env = {"PATH": path, "HOME": folder, "LANG": "C.UTF-8", **spec.env}
            setup = Setup(workdir=folder, env=env, user=None, hide=False)
            argv = [sys.executable, "-I", "-S", "-c", source()]
            async with (
                child(argv, env={"PATH": path, "LANG": "C.UTF-8"}, end_seconds=_END_SECONDS) as process,
                supervised(
                    process.stream,
                    setup,
                    spec.files,
                    name=f"{self.name} sandbox",
                    lifetime=spec.limits.lifetime,
                    ready_seconds=_READY_SECONDS,
                ) as sandbox,
            ):
                yield sandbox
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(shutil.rmtree, Path(folder), True)


def _sweep() -> None:
    """Remove the folders of processes that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = _FOLDER.fullmatch(folder.name)
        if owner and not Path("/proc", owner[1]).exists() and folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
