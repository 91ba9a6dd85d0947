"""The connection to a supervisor: calls go out, frames come back.

What always holds: every wait has a bound; what comes from the inside is bounded and checked, since whoever has taken
the supervisor over may send anything; a link that has failed once has failed for good, and tells all calls so at once.
"""

import marshal
from contextlib import suppress
from typing import Any, Protocol

import anyio

from moonmill.sandboxes.calls import Call, Ending
from moonmill.sandboxes.errors import SandboxUnavailableError
from moonmill.sandboxes.inside import frames
from moonmill.sandboxes.types import MIB

_LONGEST_FRAME = MIB
_GRACE_SECONDS = 15.0
"""A supervisor ends a call at its time-out; from one that is silent for so long after it, nothing more will come."""
_ABANDON_SECONDS = 1.0
_WINDOW = 4 * frames.CHUNK
"""Bytes of input on their way that have not been taken."""
_MARSHAL = 2
"""The format of `marshal` that every Python 3 reads."""


class ByteStream(Protocol):
    """The way to a supervisor."""

    async def receive(self) -> bytes:
        """What has come; empty at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of it. Raises `OSError` where nobody is there any more."""
        ...

    async def aclose(self) -> None:
        """Nothing more will be sent, and nothing received."""
        ...


class Link:
    """Many calls over one stream.

    Args:
        stream: the way to the supervisor.
        name: what the sandbox is called in errors.
    """

    def __init__(self, stream: ByteStream, name: str) -> None:
        self.lost = ""
        """Why it is of no more use; empty while it is."""
        self._stream = stream
        self._name = name
        self._calls: dict[int, Call] = {}
        self._next = 1
        self._sending = anyio.Lock()
        self._ready = anyio.Event()

    async def set_up(self, setup: dict[str, Any], seconds: float) -> None:
        """Tell the supervisor what holds for all calls, and wait until it is ready.

        Raises:
            SandboxUnavailableError: it does not get ready in `seconds`.
        """
        with anyio.move_on_after(seconds) as scope:
            await self._send(frames.SETUP, 0, marshal.dumps(setup, _MARSHAL))
            await self._ready.wait()
        if scope.cancelled_caught:
            self.lose(f"it was not ready in {seconds:g} s")
        self._raise_if_lost()

    async def call(self, spec: dict[str, Any], data: bytes | None, *, limit: int, seconds: float) -> Ending:
        """Have the supervisor do something, and wait for its end.

        Args:
            spec: what, as in the frame START.
            data: its stdin; None for none.
            limit: bytes of output that are kept of each kind.
            seconds: its time-out.

        Raises:
            SandboxUnavailableError: the supervisor is not there, or says nothing.
        """
        self._raise_if_lost()
        number, self._next = self._next, self._next + 1
        call = self._calls[number] = Call(limit)
        start = {**spec, "input": data is not None, "limit": limit, "timeout": seconds}
        try:
            with anyio.move_on_after(seconds + _GRACE_SECONDS):
                await self._send(frames.START, number, marshal.dumps(start, _MARSHAL))
                if data is not None:
                    await self._feed(number, call, data)
                await call.over.wait()
        except BaseException:
            with anyio.move_on_after(_ABANDON_SECONDS, shield=True), suppress(SandboxUnavailableError):
                await self._send(frames.KILL, number, b"")
            raise
        finally:
            del self._calls[number]
        if not call.over.is_set():
            self.lose(f"it did not answer for {_GRACE_SECONDS:g} s")
        self._raise_if_lost()
        return call.ending

    def lose(self, why: str) -> None:
        """It is of no more use from now on; all calls end."""
        self.lost = self.lost or f"the {self._name} is gone: {why}"
        self._ready.set()
        for call in self._calls.values():
            call.over.set()
            call.taken.set()

    async def serve(self, lifetime: float) -> None:
        """Keep the link up for so many seconds at most. At its end the stream is closed, which ends the supervisor."""
        try:
            with anyio.move_on_after(lifetime) as scope:
                await self._listen()
            if scope.cancelled_caught:
                self.lose(f"its lifetime of {lifetime:g} s is over (limits.lifetime)")
        finally:
            self.lose("it was closed")
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()

    async def _listen(self) -> None:
        """Take in what the supervisor sends, until it has ended."""
        received = bytearray()
        while not self.lost:
            try:
                data = await self._stream.receive()
            except OSError as e:
                self.lose(str(e))
                return
            if not data:
                self.lose("its supervisor has ended")
                return
            received += data
            try:
                self._take(received)
            except ValueError as e:
                self.lose(f"its supervisor is not what it was: it sent {e}")

    def _take(self, received: bytearray) -> None:
        """Take whole frames from what was received. Raises `ValueError` where those are none."""
        begin = 0
        while len(received) - begin >= frames.FRAME.size:
            kind, number, length = frames.FRAME.unpack_from(received, begin)
            if length > _LONGEST_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            end = begin + frames.FRAME.size + length
            if len(received) < end:
                break
            payload = bytes(received[begin + frames.FRAME.size : end])
            begin = end
            if kind == frames.READY:
                self._ready.set()
            elif kind == frames.BROKEN:
                self.lose(payload.decode("utf-8", "replace"))
            elif number in self._calls:
                self._calls[number].take(kind, payload)
            elif not 0 < number < self._next:
                raise ValueError(f"something about a call {number}, which there never was")
        del received[:begin]  # once, however small they are

    async def _feed(self, number: int, call: Call, data: bytes) -> None:
        """Send a call its input, as it takes it."""
        for begin in range(0, len(data), frames.CHUNK):
            piece = data[begin : begin + frames.CHUNK]
            while call.on_the_way + len(piece) > _WINDOW and not call.over.is_set():
                call.taken = anyio.Event()
                await call.taken.wait()
            if call.over.is_set():
                return
            call.on_the_way += len(piece)
            await self._send(frames.INPUT, number, piece)
        await self._send(frames.INPUT, number, b"")

    async def _send(self, kind: int, number: int, payload: bytes) -> None:
        async with self._sending:
            self._raise_if_lost()
            try:
                # Half a frame would make nonsense of all that follow it.
                with anyio.CancelScope(shield=True), anyio.fail_after(_GRACE_SECONDS):
                    await self._stream.send(frames.FRAME.pack(kind, number, len(payload)) + payload)
            except (OSError, TimeoutError) as e:
                self.lose(f"nothing can be sent to it any more ({str(e) or type(e).__name__})")
                raise SandboxUnavailableError(self.lost) from e

    def _raise_if_lost(self) -> None:
        if self.lost:
            raise SandboxUnavailableError(self.lost)
