"""What our server processes (engine, learner) have in common: one ready line, one way to end.

The convention, which `moonmill.agents.processes.ServerProcess` relies on:

- A server that accepts requests prints one line `{"ready": {"port": N, "pid": P, ...}}` on stdout, and nothing else
  there: afterwards whatever is printed goes to stderr. One that takes long to start may print lines
  `{"progress": "..."}` before, which are for people.
- A server that cannot start (port taken, bad arguments) prints one line to stderr and exits with 2.
- SIGTERM and SIGINT end it with 0, after the requests in flight or a second, whichever is sooner.
- With `exit_with_stdin` it ends at once when its stdin closes or its parent ends, so that it never outlives a parent
  that was killed: not while it is stopped and sees no stdin close, nor where a fork of the parent keeps it open.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import uvicorn

from moonmill.agents.open_files import allow_many_files

USAGE_EXIT_CODE = 2
_GRACE_SECONDS = 1
"""How long requests in flight may go on after SIGTERM. Streams can last minutes; their clients know how to go on."""
KEEP_ALIVE_SECONDS = 60
"""Longer than clients keep idle connections, so that they never send into one that is just being closed."""
_BACKLOG = 2048
_UNREAD_SECONDS = 120.0
"""How long a client may leave unread what it was sent, or be out of reach, before its connection is dropped."""
_PR_SET_PDEATHSIG = 1
"""Linux' name for this number, in `sys/prctl.h`."""


def serve(
    app: Callable[..., Awaitable[None]],
    host: str,
    port: int,
    exit_with_stdin: bool = False,
    ready: Mapping[str, Any] | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Serve `app` until SIGTERM or SIGINT; must be called in the main thread.

    Args:
        app: the ASGI application; its lifespan runs before the ready line is printed.
        host: the address to listen on.
        port: 0 lets the system choose one; the ready line tells which.
        exit_with_stdin: end when stdin is closed or the parent ends.
        ready: further facts for the ready line.
        listener: a socket from `listen`, where the caller had slow work to do between taking the port and serving.

    Raises:
        SystemExit: with 2 where the address cannot be used or the app's start-up failed.
    """
    listener = listener or listen(host, port)
    allow_many_files()
    if exit_with_stdin:
        die_with_stdin()
    # uvicorn raises the signal again when it has shut down, for whoever handled it before: that is these two.
    signal.signal(signal.SIGTERM, _exit_cleanly)
    signal.signal(signal.SIGINT, _exit_cleanly)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ws="none",
    )
    server = _Server(config, {"host": host, "port": listener.getsockname()[1], "pid": os.getpid(), **(ready or {})})
    server.run(sockets=[listener])
    if not server.started:
        raise SystemExit(USAGE_EXIT_CODE)


def listen(host: str, port: int) -> socket.socket:
    """Take the port, so that a second server on it fails at once and not after loading its model.

    Raises:
        SystemExit: with 2 where the address cannot be used.
    """
    return bind(host, port, listening=True)


def bind(host: str, port: int, *, listening: bool) -> socket.socket:
    """Take the port; not `listening`, it is kept for another process, which may bind to it meanwhile and listen.

    Raises:
        SystemExit: with 2 where the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Its protocol is named because asyncio sends small packets at once only where it is: else each answer's last one
    # waits for the client to acknowledge the one before, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":
        # Connections inherit it. Only the kernel knows whether a client reads.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_UNREAD_SECONDS * 1000))
    try:
        listener.bind((host, port))
        if listening:
            listener.listen(_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as e:  # the last two: a port beyond 65535, a host that is no name
        listener.close()
        number = e.errno if isinstance(e, OSError) else None
        reason = os.strerror(number) if number and number > 0 else e
        refuse(f"cannot listen on {host}:{port}: {reason}; choose another port (0 takes any)")
    return listener


@contextmanager
def starting() -> Iterator[None]:
    """Import and load here what stays for good: Python's garbage collector rests meanwhile, and leaves it alone later.

    Torch and transformers make 350,000 objects. Looked through again and again, they take a fifth of the time that
    importing them does, and 0.2 s at every full collection afterwards, in which nothing is decoded.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def refuse(message: str) -> NoReturn:
    """End this process because of what it was given: one line on stderr, exit code 2."""
    print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201
    raise SystemExit(USAGE_EXIT_CODE)


def announce_ready(facts: Mapping[str, Any]) -> None:
    """Print the ready line and send everything printed later to stderr."""
    line = json.dumps({"ready": dict(facts)}) + "\n"
    sys.stdout.flush()
    os.write(1, line.encode())
    # The parent reads one line and no more: later output must not fill a pipe that nobody empties.
    os.dup2(2, 1)


def die_with_stdin() -> None:
    """End this process, without ceremony, once its stdin closes or, on Linux, its parent ends.

    To Linux the parent is the thread that started this process, not only the process of that thread.
    """
    if sys.platform == "linux":
        # Asked for here and not between fork and exec, where a parent with threads may run no Python. A parent that had
        # gone before has closed the pipe.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=watch, name="die-with-stdin", daemon=True).start()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, facts: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._facts = facts

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            announce_ready(self._facts)


def _exit_cleanly(signum: int, frame: object) -> None:
    raise SystemExit(0)
