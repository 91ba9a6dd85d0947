"""The stream over an attached connection: frames of stdout and stderr, however they are cut."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby

import anyio
import pytest
from anyio.abc import UNIXSocketStream
from hypothesis import given
from hypothesis import strategies as st

from moonmill.sandboxes.docker_stream import AttachedStream, Frames
from moonmill.sandboxes.sockets import SocketStream

pytestmark = pytest.mark.anyio


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", kind, len(data)) + data


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50)), max_size=10),
    st.lists(st.integers(min_value=1, max_value=40), min_size=1),
)
def test_frames_are_told_apart_wherever_the_bytes_are_cut(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(frame(kind, text) for kind, text in sent)
    frames, got, at, turn = Frames(), [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        got += [*frames.feed(data[at : at + size])]
        at, turn = at + size, turn + 1
    for is_stderr, kind in ((False, 1), (True, 2)):
        expected = b"".join(text for k, text in sent if k == kind)
        assert b"".join(piece for told, piece in got if told == is_stderr) == expected
    order = [told for told, _ in groupby(got, key=lambda piece: piece[0])]
    assert order == [kind == 2 for kind, _ in groupby([k for k, text in sent if text])]


@asynccontextmanager
async def attached() -> AsyncIterator[tuple[AttachedStream, socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs:
        stream = AttachedStream(SocketStream(await UNIXSocketStream.from_socket(ours)))
        try:
            yield stream, theirs
        finally:
            await stream.aclose()


async def test_stdout_is_the_stream_and_the_end_of_stderr_is_kept() -> None:
    async with attached() as (stream, docker):
        docker.sendall(frame(2, b"x" * 5000 + b"oh\n") + frame(1, b"one") + frame(2, b"no\n") + frame(1, b"two"))
        assert await stream.receive() == b"one"
        assert await stream.receive() == b"two"
        assert stream.last_words().endswith("xxoh\nno")
        assert len(stream.last_words()) < 5000


async def test_its_end_is_no_bytes_also_where_it_breaks() -> None:
    async with attached() as (stream, docker):
        docker.sendall(frame(1, b"last")[:-1])
        docker.shutdown(socket.SHUT_WR)
        assert await stream.receive() == b"las"
        assert await stream.receive() == b""
        assert await stream.receive() == b""


async def test_sending_to_nobody_is_an_os_error() -> None:
    async with attached() as (stream, docker):
        docker.close()
        with pytest.raises(OSError, match="docker has closed"):
            await stream.send(b"x")


async def test_it_sends_and_receives_at_once_however_much_it_is() -> None:
    async with attached() as (stream, docker):

        def echo() -> None:
            docker.setblocking(True)
            while data := docker.recv(65536):
                docker.sendall(frame(1, data))

        async def send() -> None:
            await stream.send(b"a" * (5 << 20))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, echo)
                group.start_soon(send)
                received = 0
                while received < 5 << 20:
                    received += len(await stream.receive())
                await stream.aclose()
