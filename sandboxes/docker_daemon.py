"""The way to the Docker daemon: docker-py's blocking calls, in worker threads of their own.

What always holds: no call blocks the event loop, every one has a time-out, and what goes wrong is told as an error of
ours, with what to do about it. A call that is under way cannot be cancelled: it is waited for, so that whoever made it
knows what it has done.
"""

import io
import json
import os
import re
import socket
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio
from anyio import CancelScope, CapacityLimiter, move_on_after, to_thread
from anyio.abc import SocketStream as TCPSocketStream
from anyio.abc import UNIXSocketStream

from moonmill.sandboxes.docker_client import CONNECTIONS, DaemonError, connect, telling
from moonmill.sandboxes.docker_stream import AttachedStream, take_connection
from moonmill.sandboxes.sockets import SocketStream

T = TypeVar("T")
_REMOVE_SECONDS = 60.0
_FIRST_PAUSE = 0.01
_LAST_LINES = 10
"""Of what a build has said, in its error."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DEFAULT_URL = "unix:///var/run/docker.sock"
_ATTACH = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}


class Daemon:
    """A Docker daemon: the one of the environment (`DOCKER_HOST`), or the one of this machine. An async context.

    Args:
        timeout: seconds without an answer after which a call has failed.
        patience: the same for building, pulling and importing images.

    Raises:
        SandboxUnavailableError: there is none that may be used, or docker-py is not installed.
    """

    def __init__(self, *, timeout: float = 60.0, patience: float = 600.0) -> None:
        self.url = os.environ.get("DOCKER_HOST") or _DEFAULT_URL
        self.info: Mapping[str, Any] = {}
        """What the daemon says of itself and of its host."""
        self._timeout = timeout
        self._patience = patience
        self._limiter: CapacityLimiter
        self._stack: AsyncExitStack
        self._client: Any
        self._patient: Any

    async def __aenter__(self) -> Self:
        self._limiter = CapacityLimiter(CONNECTIONS)
        async with AsyncExitStack() as stack:
            self._client = await self.run(partial(connect, self.url, self._timeout))
            stack.callback(self._client.close)
            self._patient = await self.run(partial(connect, self.url, self._patience))
            stack.callback(self._patient.close)
            self.info = await self.call("tell about itself", "info")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def call(self, doing: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Make one of docker-py's low-level calls.

        Args:
            doing: what it is to do, for errors.
            name: of the method of `docker.APIClient`.
            args: its arguments.
            kwargs: its keyword arguments.

        Raises:
            DaemonError: it has failed.
        """
        return await self.run(partial(telling, doing, partial(getattr(self._client, name), *args, **kwargs)))

    async def follow(self, doing: str, name: str, *args: Any, **kwargs: Any) -> None:
        """Make a call that may take long and tells its progress line by line, to its end.

        Raises:
            DaemonError: it has failed, which some calls tell in a line, or takes longer than our patience.
        """
        deadline = time.monotonic() + self._patience
        lines: deque[str] = deque(maxlen=_LAST_LINES)

        def work() -> None:
            for event in getattr(self._patient, name)(*args, decode=True, **kwargs):
                if "error" in event:
                    raise DaemonError(doing, "\n".join([*lines, str(event["error"])]))
                if time.monotonic() > deadline:
                    raise DaemonError(doing, f"it took more than {self._patience:g} s")
                text = _COLOUR.sub("", str(event.get("stream") or event.get("status") or "")).strip()
                if text:
                    lines.append(text)

        await self.run(partial(telling, doing, work))

    async def create(self, container: Mapping[str, Any], host: Mapping[str, Any]) -> None:
        """Create a container: `container` and `host` are arguments of docker-py's `create_container` and `HostConfig`.

        Where this does not return, what is created nevertheless is removed, as far as the daemon answers.

        Raises:
            DaemonError: it cannot be created.
        """
        abandoned = threading.Event()

        def work() -> None:
            made = self._client.create_host_config(**host)
            # What a user has configured as proxies may hold passwords.
            self._client.create_container(**container, host_config=made, use_config_proxy=False)
            if abandoned.is_set():
                self._client.remove_container(container["name"], force=True)

        try:
            await self.run(partial(telling, "create a container", work))
        except BaseException:
            abandoned.set()
            with CancelScope(shield=True):
                await self.remove(container["name"])
            raise

    async def remove(self, container: str) -> None:
        """End and remove a container, and wait until it is gone; that it is gone already is no error.

        A daemon that does not do it is not told of: who leaves a sandbox can do nothing about that. What remains is
        removed at the end, or by the next who comes.
        """
        with suppress(DaemonError), move_on_after(_REMOVE_SECONDS):
            try:
                await self.call("remove a container", "remove_container", container, force=True, v=True)
            except DaemonError as e:
                if e.status != 409:
                    raise
            pause = _FIRST_PAUSE
            while True:  # it is being removed by somebody else, such as the daemon, at the container's end
                await self.call("look after a container", "inspect_container", container)
                await anyio.sleep(pause)
                pause = min(2 * pause, 1.0)

    async def read_file(self, container: str, path: str) -> bytes:
        """A small file of a container, which need not run; empty where there is none.

        Raises:
            DaemonError: it cannot be read.
        """

        def work() -> bytes:
            pieces, _ = self._client.get_archive(container, path)
            with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
                file = archive.extractfile(archive.getmembers()[0])
                return file.read() if file else b""

        try:
            return await self.run(partial(telling, f"read {path}", work))
        except DaemonError as e:
            if e.status == 404:
                return b""
            raise

    async def import_image(self, path: Path, name: str) -> None:
        """Make an image of a tar of its files.

        Raises:
            DaemonError: it cannot be made.
        """

        doing = f"import {path}"

        def work() -> None:
            repository, _, tag = name.partition(":")
            with path.open("rb") as file:
                said = self._patient.import_image(src=file, repository=repository, tag=tag)
            for event in map(json.loads, said.splitlines()):
                if "error" in event:
                    raise DaemonError(doing, event["error"])

        await self.run(partial(telling, doing, work))

    async def attach(self, container: str) -> AttachedStream:
        """Take stdin, stdout and stderr of a container.

        Raises:
            DaemonError: they cannot be had.
        """

        def work() -> socket.socket:
            return take_connection(self._client.attach_socket(container, params=_ATTACH))

        connection = await self.run(partial(telling, "attach to a container", work))
        kind = UNIXSocketStream if connection.family == socket.AF_UNIX else TCPSocketStream
        try:
            return AttachedStream(SocketStream(await kind.from_socket(connection)))
        except BaseException:
            connection.close()
            raise

    async def run(self, work: Callable[[], T]) -> T:
        """Do something that blocks in one of the threads."""
        return await to_thread.run_sync(work, limiter=self._limiter)
