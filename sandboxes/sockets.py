"""A byte stream over a socket of ours, to a supervisor. A process that is forked from ours does not hold it open.

A sandbox ends with its stream. Were it held by a forked process too, a sandbox would outlive us.
"""

import os
import socket
from contextlib import suppress
from weakref import WeakSet

import anyio
from anyio.abc import SocketAttribute
from anyio.abc import SocketStream as AnySocketStream

from moonmill.sandboxes.inside.frames import CHUNK

_kept: "WeakSet[socket.socket]" = WeakSet()


class SocketStream:
    """See `moonmill.sandboxes.link.ByteStream`. It owns the socket.

    Args:
        stream: the socket's.
    """

    def __init__(self, stream: AnySocketStream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        """What has come; empty at the end."""
        try:
            return await self._stream.receive(2 * CHUNK)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as e:
            raise OSError(str(e) or "the stream is closed") from e

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as e:
            raise OSError(str(e) or "the stream is closed") from e

    async def aclose(self) -> None:
        """Close it, also for who was given it in the midst of a fork."""
        with suppress(OSError):
            self._stream.extra(SocketAttribute.raw_socket).shutdown(socket.SHUT_RDWR)
        await self._stream.aclose()


def keep_from_forks(connection: socket.socket) -> socket.socket:
    """A process that is forked from here on has not got this connection."""
    _kept.add(connection)
    return connection


def _let_go() -> None:
    """In a forked process. What believes to own a descriptor may close it there, so each of them stays one."""
    if numbers := [number for connection in _kept if (number := connection.fileno()) >= 0]:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in numbers:
            os.dup2(nothing, number, inheritable=False)
        os.close(nothing)
        _kept.clear()


os.register_at_fork(after_in_child=_let_go)
