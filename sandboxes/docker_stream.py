"""The bytes between us and the first process of a container, over the connection of an attach request.

Docker sends what the process writes as frames that say whether it was stdout or stderr: stdout is the stream, and of
stderr the end is kept, for errors. Nothing is read before it is asked for: a container that talks too much has to wait.
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

from moonmill.sandboxes.sockets import SocketStream, keep_from_forks

_FRAME = struct.Struct(">BxxxL")
"""Which stream, and how many bytes of it follow."""
_STDERR = 2
_LAST_WORDS = 4096
"""Bytes of stderr that are kept."""


class Frames:
    """Takes an attached connection's bytes as they come, and tells what of them is stdout and what stderr."""

    def __init__(self) -> None:
        self._head = b""
        self._is_stderr = False
        self._left = 0
        """Bytes of the frame that are still to come."""

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """What `data` brings: pieces, each with whether it is stderr. A frame is not waited for until it is whole."""
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                yield self._is_stderr, piece
                continue
            missing = _FRAME.size - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) == _FRAME.size:
                kind, self._left = _FRAME.unpack(self._head)
                self._is_stderr, self._head = kind == _STDERR, b""


class AttachedStream:
    """stdin and stdout of a container's first process as one stream of bytes. It owns the connection.

    Args:
        stream: the connection, on which the attach request has been answered.
    """

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._frames = Frames()
        self._received: deque[bytes] = deque()
        self._stderr = b""

    async def receive(self) -> bytes:
        """The next bytes; none at the end, which is also what a broken connection is."""
        while not self._received:
            try:
                data = await self._stream.receive()
            except OSError:
                data = b""
            if not data:
                return b""
            for is_stderr, piece in self._frames.feed(data):
                if is_stderr:
                    self._stderr = (self._stderr + piece)[-_LAST_WORDS:]
                else:
                    self._received.append(piece)
        return self._received.popleft()

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises `OSError` where the container, or the daemon, is gone."""
        try:
            await self._stream.send(data)
        except OSError as e:
            raise BrokenPipeError("docker has closed the connection to the container") from e

    async def aclose(self) -> None:
        """Leave. The container's stdin ends, and its first process with it."""
        await self._stream.aclose()

    def last_words(self) -> str:
        """The end of what has arrived of stderr."""
        return self._stderr.decode("utf-8", "replace").strip()


def take_connection(attached: Any) -> socket.socket:
    """The connection under what docker-py's `attach_socket` returns, as a socket of our own; theirs is closed."""
    try:
        return keep_from_forks(socket.socket(fileno=os.dup(attached.fileno())))
    finally:
        attached._response.close()  # which is all of it; closing `attached` would leave the connection to the collector
