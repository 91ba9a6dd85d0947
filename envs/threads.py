"""One thread per episode for the environment's blocking code.

Everything synchronous of one environment runs on one thread, in order: a blocking tool stalls only its own episode, and
objects that belong to a thread (a database connection) stay on theirs. Idle threads are used again. A call that is
cancelled while it runs cannot be ended: its thread is abandoned, never used again, and ends when the call returns.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

P = ParamSpec("P")
T = TypeVar("T")
_KEPT_IDLE = 256
"""More idle threads than this are ended."""


class _Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.done = anyio.Event()
        self.token = anyio.lowlevel.current_token()
        self.result: Any = None
        self.error: BaseException | None = None


class OwnerThread:
    """A thread that runs one call after another for one owner. Get one with `acquire`, give it back with `release`."""

    _idle: deque["OwnerThread"] = deque()

    def __init__(self) -> None:
        self.abandoned = False
        """A call was cancelled while it ran: the thread is of no more use."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._work, name="moonmill-episode", daemon=True).start()

    @classmethod
    def acquire(cls) -> "OwnerThread":
        """An idle thread, or a new one."""
        try:
            return cls._idle.pop()
        except IndexError:
            return cls()

    def release(self) -> None:
        """The owner is done."""
        if not self.abandoned and len(self._idle) < _KEPT_IDLE:
            self._idle.append(self)
        else:
            self._jobs.put(None)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the thread and wait for it, without blocking the event loop. What it raises is raised here."""
        if self.abandoned:
            raise RuntimeError("this thread is still busy with a call that was cancelled")
        job = _Job(lambda: call(*args, **kwargs))
        self._jobs.put(job)
        try:
            await job.done.wait()
        except anyio.get_cancelled_exc_class():
            self.abandoned = not job.done.is_set()
            raise
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.result = job.call()
            except BaseException as e:  # noqa: BLE001 - raised again where the call was made
                job.error = e
            try:
                anyio.from_thread.run_sync(job.done.set, token=job.token)
            except anyio.RunFinishedError:
                return  # The event loop has ended meanwhile: nobody waits.
            del job
