"""One container of ours: made, attached to, started and removed again."""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from anyio import CancelScope, fail_after

from moonmill.sandboxes import docker_settings
from moonmill.sandboxes.bundle import source
from moonmill.sandboxes.docker_client import DaemonError
from moonmill.sandboxes.docker_daemon import Daemon
from moonmill.sandboxes.docker_images import Image
from moonmill.sandboxes.docker_stream import AttachedStream
from moonmill.sandboxes.errors import SandboxSpecError
from moonmill.sandboxes.types import SandboxSpec

PYTHONS = ("python3", "/usr/local/bin/python3", "/usr/bin/python3", "/opt/conda/bin/python3", "python")
"""Where an image may have one: on its PATH, or off it."""
_DIGITS = 8
_SEND_SECONDS = 60.0
OLDEST = (3, 9)
TOO_OLD = "this is Python "
"""So begins what the supervisor's Python says where it is too old."""
# The program comes over the connection: as an argument it would be in every list of processes.
_BEGIN = f"""import os, sys
if sys.version_info < {OLDEST}:
    sys.exit("{TOO_OLD}" + sys.version.split()[0])
import pwd, resource  # what a smaller Python lacks
def take(number):
    data = b""
    while len(data) < number:
        data += os.read(0, number - len(data)) or sys.exit()
    return data
exec(take(int(take({_DIGITS}))))
"""


class NoPythonError(SandboxSpecError):
    """An image has not got the program that the supervisor was to be run with."""


@asynccontextmanager
async def running(
    daemon: Daemon, spec: SandboxSpec, image: Image, uid: str, python: str, labels: Mapping[str, str]
) -> AsyncIterator[AttachedStream]:
    """A container that runs the supervisor with `python`, for commands of the user `uid`, and the way to it.

    It is gone afterwards.

    Raises:
        NoPythonError: the image has no such program.
        DaemonError: there can be no container.
    """
    name = f"moonmill-{uuid.uuid4().hex}"
    argv = [python, "-I", "-S", "-c", _BEGIN]
    program = source().encode()
    container = docker_settings.container(image, argv, name, labels)
    await daemon.create(container, docker_settings.host(spec, image, uid, daemon.info))
    stream = None
    try:
        stream = await daemon.attach(name)  # before it starts: where we end now, its stdin does, and it ends too
        try:
            await daemon.call("start a container", "start", name)
        except DaemonError as e:
            if python in e.why and ("not found" in e.why or "no such file" in e.why):
                raise NoPythonError(f"the image {image.name!r} has no {python}") from e
            raise
        with suppress(OSError), fail_after(_SEND_SECONDS):  # who listens is told that it is not ready, and why
            await stream.send(b"%0*d" % (_DIGITS, len(program)) + program)
        yield stream
    finally:
        with CancelScope(shield=True):
            await daemon.remove(name)
            if stream is not None:
                await stream.aclose()
