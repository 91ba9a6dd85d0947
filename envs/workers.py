"""Functions that may hang, crash or take all memory, called in processes that can be killed: scorers, above all.

A pool has few processes. They start when they are needed and are used again, one call at a time each. What always
holds:

- A call is answered, once: with its result, its error, or that its process was killed or has died.
- Its time limit counts neither waiting for a process nor the process's start and imports.
- A process that was killed or has died takes no other call along: the next gets a new process.
- No process outlives us, be we killed, and none is left behind by a call that nobody waits for any more.
"""

import atexit
import itertools
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any

import msgspec

from moonmill.envs.elsewhere import CallOff, Deliver, wait_on_thread
from moonmill.envs.loop import Answer
from moonmill.envs.worker import BEGUN, Call, Reply
from moonmill.errors import EnvCodeError, WorkerDiedError, WorkerTimeoutError

if TYPE_CHECKING:
    from moonmill.envs.base import MultiTurnEnv

_START_SECONDS = 120.0
"""For a process to start and to import what it is to call."""
_QUEUE_SECONDS = 600.0
"""A call that has waited longer for its turn is given up."""
_CLOSE_SECONDS = 5.0
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
"""What a worker sees of our environment variables: keys of ours are none of its business."""


class WorkerPool:
    """Calls functions in processes of their own, a few at a time.

    Args:
        size: at most so many processes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # A forked process has none of its parent's threads.
        atexit.register(self.close)

    def call(self, function: str, *arguments: Any, limit: float, urgent: bool = False) -> Any:
        """Call a function and wait for it, in synchronous code; cancelling an episode ends its waiting, and the call.

        Args:
            function: where it is, `package.module:function`.
            arguments: plain data, and so is what comes back.
            limit: seconds that it may take.
            urgent: its turn comes before that of those which are not.

        Raises:
            WorkerTimeoutError: it took longer, and was killed.
            WorkerDiedError: its process died.
            EnvCodeError: it raised, or cannot be had.
        """
        return wait_on_thread(partial(self.begin, function, arguments, limit, urgent))

    def begin(self, function: str, arguments: tuple[Any, ...], limit: float, urgent: bool, deliver: Deliver) -> CallOff:
        """Have a function called; comes back at once. `envs.elsewhere` says how one waits for it.

        Args:
            function: where it is, `package.module:function`.
            arguments: plain data.
            limit: seconds that it may take.
            urgent: its turn comes before that of those which are not.
            deliver: is given the answer.
        """
        job = _Job(Call(function, arguments), limit, deliver)
        with self._lock:
            self._unfinished.add(job)
            if len(self._threads) < min(len(self._unfinished), self._size):
                thread = threading.Thread(target=self._work, args=(self._jobs,), name="moonmill-worker", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._jobs.put((not urgent, next(self._numbers), job))
        return job.call_off

    def close(self) -> None:
        """End all processes; calls that are under way are answered. A later call starts new ones."""
        with self._lock:
            jobs, threads, unfinished = self._jobs, self._threads, tuple(self._unfinished)
            self._begin_anew()
        for job in unfinished:
            job.call_off()
        for number in range(len(threads)):
            jobs.put((True, sys.maxsize - number, None))
        for thread in threads:
            thread.join(_CLOSE_SECONDS)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._jobs: PriorityQueue[_Queued] = PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._unfinished: set[_Job] = set()

    def _work(self, jobs: "PriorityQueue[_Queued]") -> None:
        """One thread keeps one process, which the kernel ends with it."""
        process: _Process | None = None
        while (job := jobs.get()[2]) is not None:
            answer, process = job.done_by(process)
            with self._lock:
                self._unfinished.discard(job)
            job.deliver(answer)
            del job, answer  # An idle thread keeps nothing alive.
        if process is not None:
            process.end()


def in_worker(env: "MultiTurnEnv", function: str, *arguments: Any, limit: float) -> Any:
    """Call a function of a scorer in a worker. Meanwhile no limit of the episode goes on but the call's own, so that
    waiting for a worker is not held against it.

    Args:
        env: whose episode waits.
        function: where it is, `package.module:function`.
        arguments: plain data, and so is what comes back.
        limit: seconds that it may take.

    Raises:
        WorkerTimeoutError: it took longer, and was killed.
        WorkerDiedError: its process died.
        EnvCodeError: it raised, or cannot be had.
    """
    with env._moonmill.sandboxes.standing_still():
        return WORKERS.call(function, *arguments, limit=limit)


class _Job:
    """A call on its way to a process and back."""

    def __init__(self, call: Call, limit: float, deliver: Deliver) -> None:
        self.deliver = deliver
        self._call = call
        self._limit = limit
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._is_off = False

    def call_off(self) -> None:
        """Nobody waits for it any more. From any thread."""
        with self._lock:
            self._is_off = True
            if self._process is not None:
                self._process.kill()

    def done_by(self, process: "_Process | None") -> "tuple[Answer, _Process | None]":
        """The answer, and the process if it can be used again. A new one is started where there is none."""
        name = self._call.function
        if time.monotonic() - self._since > _QUEUE_SECONDS:
            return Answer(error=EnvCodeError(f"{name}: no worker was free in {_QUEUE_SECONDS:g} s")), process
        try:
            with self._lock:
                if self._is_off:
                    return Answer(error=EnvCodeError(f"{name} was called off")), process
                if process is None or not process.is_alive:
                    process = _Process()
                self._process = process
            reply = process.ask(self._call, self._limit)
        except (EnvCodeError, WorkerDiedError, WorkerTimeoutError) as e:
            answer, is_usable = Answer(error=e), False
        except Exception as e:  # There is no memory, no file descriptor, or the arguments are no plain data.
            answer, is_usable = Answer(error=EnvCodeError(f"{name} cannot be called: {e!r:.500}")), False
        else:
            error = None if reply.error is None else EnvCodeError(f"{name} raised {reply.error}")
            # What has run out of memory once has little left.
            answer, is_usable = Answer(reply.result, error), not str(reply.error).startswith("MemoryError")
        with self._lock:
            self._process = None
            is_usable = is_usable and not self._is_off
        if process is not None and not is_usable:
            process.end()
            return answer, None
        return answer, process


_Queued = tuple[bool, int, _Job | None]
"""Whether it can wait, its number, which is its own, and the job."""


class _Process:
    """One worker. Only the thread that started it may ask it; any may kill it."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        # The order of sets of texts must not differ from worker to worker: what is generated may depend on it.
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "0"}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", "moonmill.envs.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,  # Ctrl-C is for us.
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, call: Call, limit: float) -> Reply:
        """Have something called."""
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(call))
            if not self._connection.poll(_START_SECONDS):
                raise EnvCodeError(f"{call.function}: its worker was not ready in {_START_SECONDS:g} s")
            told = self._connection.recv_bytes()
            if told == BEGUN:
                if not self._connection.poll(limit):
                    raise WorkerTimeoutError(f"{call.function} took longer than {limit:g} s, and was killed")
                told = self._connection.recv_bytes()
            return msgspec.msgpack.decode(told, type=Reply)
        except (EOFError, OSError):
            status = self.end()
            raise WorkerDiedError(f"{call.function}: its worker died (status {status})") from None

    def kill(self) -> None:
        """Whatever it is doing."""
        self._process.kill()

    def end(self) -> int:
        """Kill it and wait for that; gives its status."""
        self.kill()
        with suppress(OSError):
            self._connection.close()
        return self._process.wait()


WORKERS = WorkerPool(min(4, os.cpu_count() or 1))
"""For all episodes of the process."""
