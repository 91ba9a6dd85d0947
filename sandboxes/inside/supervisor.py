"""The first process of a sandbox: starts commands, carries their input and output, and ends them.

What always holds:

- It ends when its stdin does, and all that it has started ends with it.
- No command is waited for: every pipe is non-blocking, all that is kept of input and output is bounded, and output that
  nobody wants is read and thrown away, so that who writes it goes on.
- A command that is to end is ended with all it has started, however that has detached itself: whatever has appeared
  since, and does not descend from what was there before. Where that does not succeed, the sandbox is given up.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import time
from typing import Any

from moonmill.sandboxes.inside.child import MOST_DESCRIPTORS, become
from moonmill.sandboxes.inside.frames import (
    BROKEN,
    CHUNK,
    ENDED,
    ERRNO,
    EXIT,
    FRAME,
    INPUT,
    KILL,
    OOM_KILLED,
    READY,
    REFUSED,
    SETUP,
    START,
    STDERR,
    STDOUT,
    TAKE,
    TAKEN,
    TIMED_OUT,
)
from moonmill.sandboxes.inside.pipes import Call, nothing_left_of, read
from moonmill.sandboxes.inside.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    all_processes,
    kill_all,
    living,
    oom_kills,
    prctl,
    started_since,
)

_MOST_UNSENT = 1 << 20
"""Bytes on their way to the host; above it, commands are not read from."""
_MOST_ORPHANS = 64
"""Pipes that what runs in the background may keep open; of more, the oldest are closed."""


class Supervisor:
    """Serves one host, over file descriptors 0 and 1."""

    def __init__(self) -> None:
        os.closerange(3, MOST_DESCRIPTORS)  # what whoever started us has left open
        self._from_host, self._to_host = os.dup(0), os.dup(1)
        for fd in (0, 1):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        self._received = bytearray()
        self._unsent = bytearray()
        self._setup: dict[str, Any] = {}
        self._calls: dict[int, Call] = {}
        self._by_fd: dict[int, Call] = {}
        self._orphans: list[int] = []
        self._oom_kills = 0
        self._woken, wake = os.pipe()
        for fd in (self._from_host, self._to_host, self._woken, wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python would raise, for one from inside as well
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the host leaves."""
        while True:
            self._flush()
            self._wait()
            self._reap()
            for call in [c for c in self._calls.values() if time.monotonic() >= c.deadline]:
                call.flags |= TIMED_OUT
                self._end(call)

    def give_up(self, why: str) -> None:
        """Tell the host that this sandbox is of no more use, and end it."""
        self._send(BROKEN, 0, why.encode("utf-8", "replace")[:CHUNK])
        self._flush()
        self._leave()

    def _wait(self) -> None:
        """Wait until there is something to do, and do it."""
        poll = select.poll()
        poll.register(self._from_host, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        if self._unsent:
            poll.register(self._to_host, select.POLLOUT)
        for fd, call in self._by_fd.items():
            if fd == call.stdin:
                if call.waiting:
                    poll.register(fd, select.POLLOUT)
            elif fd == call.note or len(self._unsent) < _MOST_UNSENT:
                poll.register(fd, select.POLLIN)
        for fd in self._orphans:
            poll.register(fd, select.POLLIN)
        soonest = min((call.deadline for call in self._calls.values()), default=float("inf"))
        seconds = min(max(0.0, soonest - time.monotonic()), 3600.0)
        for fd, _ in poll.poll(int(seconds * 1000) + 1):
            self._serve(fd)

    def _serve(self, fd: int) -> None:
        if fd == self._from_host:
            self._receive()
        elif fd == self._woken:
            read(fd)
        elif fd in self._by_fd:
            call = self._by_fd[fd]
            if fd == call.stdin:
                self._feed(call)
            elif fd == call.note:
                self._take_note(call)
            else:
                self._pass_on(call, fd)
        elif fd in self._orphans and read(fd) == b"":
            self._orphans.remove(fd)
            os.close(fd)

    # The host

    def _send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self._unsent += FRAME.pack(kind, number, len(payload)) + payload

    def _flush(self) -> None:
        while self._unsent:
            try:
                del self._unsent[: os.write(self._to_host, self._unsent)]
            except BlockingIOError:
                return
            except OSError:
                self._leave()

    def _receive(self) -> None:
        data = read(self._from_host)
        if data == b"":
            self._leave()
        self._received += data or b""
        while len(self._received) >= FRAME.size:
            kind, number, length = FRAME.unpack_from(self._received)
            end = FRAME.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[FRAME.size : end])
            del self._received[:end]
            self._obey(kind, number, payload)

    def _obey(self, kind: int, number: int, payload: bytes) -> None:
        if kind == SETUP:
            self._setup = marshal.loads(payload)
            self._send(READY, number)
            self._flush()
            # The rest while the host hears of it, and before anything is started.
            if self._setup["hide"]:
                prctl(PR_SET_DUMPABLE, 0)
            if os.getpid() != 1:
                prctl(PR_SET_CHILD_SUBREAPER, 1)
            import resource  # noqa: F401  # for those that are forked from this
        elif kind == START:
            self._start(number, marshal.loads(payload))
        elif number in self._calls:
            call = self._calls[number]
            if kind == KILL:
                self._end(call)
            elif kind == INPUT:
                call.input_over = not payload
                if payload:
                    call.waiting += payload
                self._feed(call)

    def _leave(self) -> None:
        """The host is gone, and so is all of this."""
        if os.getpid() != 1:  # the kernel ends what a first process leaves
            kill_all(lambda: {*living(all_processes())})
        os._exit(0)

    # Calls

    def _start(self, number: int, spec: dict[str, Any]) -> None:
        try:
            call = Call(number, spec)
            call.fork()
        except OSError as e:
            self._send(REFUSED, number, ERRNO.pack(e.errno or 0) + b"sandbox\0" + str(e.strerror).encode())
            return
        if call.pid == 0:
            become(spec, self._setup, call.theirs[:3], call.theirs[3])
        call.begin()
        self._calls[number] = call
        self._by_fd.update((fd, call) for fd in call.fds if fd >= 0)

    def _feed(self, call: Call) -> None:
        """Give a command what has come for it; what it does not want is thrown away."""
        while call.waiting:
            try:
                written = os.write(call.stdin, call.waiting) if call.stdin >= 0 else len(call.waiting)
            except BlockingIOError:
                return
            except OSError:
                self._let_go(call, "stdin")
                continue
            del call.waiting[:written]
            self._send(TAKEN, call.number, TAKE.pack(written))
        if call.input_over:
            self._let_go(call, "stdin")

    def _take_note(self, call: Call) -> int:
        data = read(call.note)
        call.refusal += data or b""
        if data == b"":
            self._let_go(call, "note")
        return len(data or b"")

    def _pass_on(self, call: Call, fd: int) -> int:
        """Tell the host what a command says; returns how much that was."""
        data = read(fd)
        if data == b"":
            self._let_go(call, "stdout" if fd == call.stdout else "stderr")
        if not data:
            return 0
        if call.keep(fd, data) >= CHUNK:
            self._tell(call, fd)
        return len(data)

    def _tell(self, call: Call, fd: int) -> None:
        """Send what a command has said. Piece by piece, as it may have been written, would cost the host too much."""
        for piece in call.taken(fd):
            self._send(STDOUT if fd == call.stdout else STDERR, call.number, piece)

    def _let_go(self, call: Call, name: str) -> None:
        fd = getattr(call, name)
        if fd >= 0:
            if fd in call.said:
                self._tell(call, fd)
            setattr(call, name, -1)
            del self._by_fd[fd]
            os.close(fd)

    def _reap(self) -> None:
        """Take in what has ended, orphans of the sandbox among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for call in [c for c in self._calls.values() if c.pid == pid]:
                self._finish(call, status)

    def _finish(self, call: Call, status: int) -> None:
        """Tell the host how a command has ended, after all it has said. Others may still hold its pipes."""
        nothing_left_of(lambda: self._take_note(call) if call.note >= 0 else 0)
        for name in ("stdout", "stderr"):
            fd = getattr(call, name)
            nothing_left_of(lambda fd=fd: self._pass_on(call, fd) if fd in self._by_fd else 0)  # type: ignore[misc]
            if fd in self._by_fd:
                self._tell(call, fd)
                del self._by_fd[fd]
                self._orphans.append(fd)
        while len(self._orphans) > _MOST_ORPHANS:
            os.close(self._orphans.pop(0))
        self._let_go(call, "stdin")
        self._let_go(call, "note")
        del self._calls[call.number]
        if call.refusal:
            self._send(REFUSED, call.number, call.refusal)
            return
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if code and self._has_oom_killed():
            call.flags |= OOM_KILLED
        self._send(EXIT, call.number, ENDED.pack(code, call.flags, time.monotonic() - call.started))

    def _has_oom_killed(self) -> bool:
        """Whether the kernel has killed something here for its memory since this was last asked."""
        seen, self._oom_kills = self._oom_kills, oom_kills(self._setup["oom_counter"])
        return self._oom_kills > seen

    def _end(self, call: Call) -> None:
        """End a command with all it has started."""
        call.deadline = float("inf")
        others: set[int] = {c.pid for c in self._calls.values() if c is not call}
        if not kill_all(lambda: started_since(call.before, others), self._reap):
            self.give_up("processes of a command could not be ended")
