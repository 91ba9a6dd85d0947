"""A worker's process, which `workers` starts: calls one function after another, and tells what came of each.

It ends with its owner, whatever it is doing: the kernel kills it when the thread that started it is gone, and what it
reads from ends. What it calls is not sandboxed, but has nothing of ours to tell: `workers` gives it no secrets of the
environment, and it answers in plain data.
"""

import ctypes
import importlib
import os
import resource
import signal
import sys
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import msgspec
from msgspec import Struct

from moonmill.blame import text_of

_PR_SET_PDEATHSIG = 1
_MEMORY_BYTES = 4 << 30
"""Of address space: what takes more gets a `MemoryError`, before it takes the machine's."""


class Call(Struct, frozen=True):
    """What is to be called: a function by its place, `package.module:function`, with plain data."""

    function: str
    arguments: tuple[Any, ...]


class Reply(Struct, frozen=True, omit_defaults=True):
    """What came of it."""

    result: Any = None
    error: str | None = None
    """What it raised."""


BEGUN = b""
"""Sent before the reply, when the function is there and is called: what it takes from here on is its own time."""


def main() -> None:
    """Serve the connection whose file descriptor is the argument, until it ends."""
    connection = Connection(int(sys.argv[1]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(2, 1)  # Our owner's stdout is for results.
    while True:
        try:
            call = msgspec.msgpack.decode(connection.recv_bytes(), type=Call)
        except EOFError:
            return
        connection.send_bytes(msgspec.msgpack.encode(_reply(connection, call)))


def _reply(connection: "Connection[Any, Any]", call: Call) -> Reply:
    try:
        function = _function(call.function)
        connection.send_bytes(BEGUN)
        reply = Reply(function(*call.arguments))
        msgspec.msgpack.encode(reply)
    except Exception as e:
        return Reply(error=f"{type(e).__name__}: {text_of(e)}"[:2000])
    return reply


@cache
def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    main()
