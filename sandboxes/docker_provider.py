"""Sandboxes as Docker containers: one container, one supervisor as its first process, one connection to it.

What always holds:

- A container ends with the connection to its supervisor, so it ends with us, however we end, and the daemon removes it.
- What was begun and not finished is removed; so is, at the end, whatever the provider has made, and at the start what
  processes have left that are no more.
"""

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Self

import anyio
from anyio import CancelScope

from moonmill.sandboxes import docker_owner, docker_settings
from moonmill.sandboxes.docker_client import DaemonError
from moonmill.sandboxes.docker_container import OLDEST, PYTHONS, TOO_OLD, NoPythonError, running
from moonmill.sandboxes.docker_daemon import Daemon
from moonmill.sandboxes.docker_images import Image, Images
from moonmill.sandboxes.docker_stream import AttachedStream
from moonmill.sandboxes.errors import SandboxSpecError, SandboxUnavailableError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.supervised import Setup, SupervisedSandbox, supervised
from moonmill.sandboxes.types import SandboxSpec

_READY_SECONDS = 60.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for in an image that does not say."""
_OOM_COUNTERS = {"1": "/sys/fs/cgroup/memory/memory.oom_control", "2": "/sys/fs/cgroup/memory.events"}
"""What tells in a container how many of its processes the kernel has killed for memory, by the version of cgroups."""


class DockerProvider:
    """Sandboxes on a Docker daemon: the one of `DOCKER_HOST`, or else this machine's. A `SandboxProvider`.

    Args:
        image: for specs that name none. An image is a name, `dockerfile:FOLDER` or `tar:FILE`; it needs a python3, 3.9
            or newer, for the supervisor.
        pull: get images that are missing from their registry. Without it, they are refused.
        timeout: seconds without an answer from the daemon after which a call has failed.
        patience: seconds that building, importing or pulling an image may take.
    """

    name = "docker"

    def __init__(
        self, *, image: str = "python:3.12-slim", pull: bool = False, timeout: float = 60.0, patience: float = 1800.0
    ) -> None:
        self.id = uuid.uuid4().hex
        """What its containers are labelled with."""
        self._image = image
        self._pull = pull
        self._daemon = Daemon(timeout=timeout, patience=patience)
        self._images: Images
        self._stack: AsyncExitStack
        self._has_bridge = False
        self._pythons: dict[str, tuple[str, ...]] = {}
        """Those that an image may have, by its id: one, once it is known."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._daemon)
            if self._daemon.info.get("OSType") != "linux":
                raise SandboxUnavailableError(f"the Docker daemon at {self._daemon.url} does not run Linux containers")
            self._images = Images(self._daemon, pull=self._pull)
            self._has_bridge = bool(await self._daemon.call("list its networks", "networks", names=["bridge"]))
            await self._remove_all(docker_owner.is_left_behind)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with CancelScope(shield=True):
            async with self._stack:
                with suppress(DaemonError):  # a daemon that is gone: what ended with it is of no interest here any more
                    await self._remove_all(lambda labels: labels[docker_owner.LABEL] == self.id)

    def enforces(self) -> Mapping[str, str]:
        """What holds on this host and by which means."""
        return docker_settings.enforces(self._daemon.info)

    def require(self, spec: SandboxSpec) -> None:
        """Raise `SandboxSpecError` where it cannot honour a spec. Images are looked for when a sandbox is opened."""
        docker_settings.refuse_what_cannot_be(spec, self._daemon.info, self._has_bridge)

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox in a container of its own.

        Raises:
            SandboxSpecError: it cannot honour the spec, or there is no such image.
            SandboxUnavailableError: the daemon does not give one.
        """
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[SupervisedSandbox]:
        self.require(spec)
        image = await self._images.find(spec.image or self._image)
        labels = docker_owner.labels(self.id)
        uid = await self._images.uid(image, spec.user or docker_settings.UNPRIVILEGED, labels)
        async with AsyncExitStack() as stack:
            stream = await self._start(stack, spec, image, uid, labels)
            yield await self._supervise(stack, stream, spec, image, uid)

    async def _start(
        self, stack: AsyncExitStack, spec: SandboxSpec, image: Image, uid: str, labels: Mapping[str, str]
    ) -> AttachedStream:
        """Start a container, with the first Python there is in its image."""
        for python in self._pythons.get(image.id, PYTHONS):
            try:
                stream = await stack.enter_async_context(running(self._daemon, spec, image, uid, python, labels))
            except NoPythonError:
                continue
            except DaemonError as e:
                if e.status == 404:  # no such image any more
                    self._images.forget(image)
                raise
            self._pythons[image.id] = (python,)
            return stream
        raise SandboxSpecError(
            f"there is no python3 in the image {image.name!r}: the supervisor is a Python program, so add python3 to "
            "the image" + (" (is the tar one of `docker save`? Then `docker load` it)" if image.is_imported else "")
        )

    async def _supervise(
        self, stack: AsyncExitStack, stream: AttachedStream, spec: SandboxSpec, image: Image, uid: str
    ) -> SupervisedSandbox:
        """Get the supervisor at work."""
        counter = _OOM_COUNTERS.get(str(self._daemon.info.get("CgroupVersion", "1")), "")
        setup = Setup(
            workdir=spec.workdir,
            env={"PATH": _PATH, "HOME": spec.workdir, "LANG": "C.UTF-8", **image.env, **spec.env},
            user=uid,
            oom_counter=counter,
            hide=uid == "0",
        )
        try:
            return await stack.enter_async_context(
                supervised(
                    stream,
                    setup,
                    spec.files,
                    name="docker sandbox",
                    lifetime=spec.limits.lifetime,
                    ready_seconds=_READY_SECONDS,
                )
            )
        except SandboxUnavailableError as e:
            raise _explained(e, stream.last_words(), image) from e

    async def _remove_all(self, which: Callable[[Mapping[str, str]], bool]) -> None:
        """Remove those of all containers of ours whose labels are such."""
        found = await self._daemon.call(
            "list containers", "containers", all=True, filters={"label": docker_owner.LABEL}
        )
        async with anyio.create_task_group() as group:
            for container in found:
                if which(container["Labels"]):
                    group.start_soon(self._daemon.remove, container["Id"])


def _explained(error: SandboxUnavailableError, said: str, image: Image) -> Exception:
    """Why a supervisor did not get to work, from what it said on stderr."""
    if said.startswith(TOO_OLD):
        oldest = ".".join(map(str, OLDEST))
        return SandboxSpecError(
            f"the python3 in the image {image.name!r} is too old: {said}, and the supervisor needs {oldest} or newer"
        )
    if "ModuleNotFoundError" in said:
        return SandboxSpecError(
            f"the python3 in the image {image.name!r} lacks a part of its standard library ({said.splitlines()[-1]}): "
            "Debian's python3-minimal is not enough, add python3"
        )
    return SandboxUnavailableError(f"{error}; it said: {said}" if said else str(error))
