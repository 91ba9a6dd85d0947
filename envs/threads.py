"""One thread per episode for the environment's blocking code.

Everything synchronous of one environment runs on one thread, in order: a blocking tool stalls only its own episode, and
objects that belong to a thread (a database connection) stay on theirs. Code on the thread may have something awaited on
the event loop (`wait_for`), and what is awaited may again run something on the thread. All of it belongs to the task
that called `run`: cancelling that cancels what is being awaited.

Idle threads are used again. A blocking call cannot be cancelled: after a short grace its thread is left behind, never
used again, and ends when the call returns.
"""

import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
from msgspec import Struct

from moonmill.blame import LeftBehind, is_interruption

T = TypeVar("T")
_KEPT_IDLE = 256
"""More idle threads than this are ended."""
_GRACE_SECONDS = 0.2
"""What a cancelled call may still take to end by itself: most do, and then the episode can be closed in order."""


class Home(Protocol):
    """Where an environment's code runs: synchronous code on one side, asynchronous code on the other."""

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """From the event loop: run something synchronous."""
        ...

    def wait_for(self, call: Callable[[], Awaitable[T]]) -> T:
        """From synchronous code: have something awaited on the event loop."""
        ...


class OwnerThread:
    """A thread that runs one call after another for one owner. Get one with `acquire`, give it back with `release`."""

    _idle: deque["OwnerThread"] = deque()

    def __init__(self) -> None:
        self.abandoned = False
        """A call was cancelled while it ran: the thread is of no more use."""
        self._inbox: SimpleQueue[_Job | _Answer | None] = SimpleQueue()
        self._current: _Job | None = None
        threading.Thread(target=self._work, name="moonmill-episode", daemon=True).start()

    @classmethod
    def acquire(cls) -> "OwnerThread":
        """An idle thread, or a new one."""
        try:
            return cls._idle.pop()
        except IndexError:
            return cls()

    @classmethod
    def forget(cls) -> None:
        """Keep none of the idle threads."""
        cls._idle.clear()

    def release(self, last: Callable[[], Any] | None = None) -> None:
        """The owner is done.

        Args:
            last: a call to make when the thread, if it is abandoned, comes back from the call it is busy with.
        """
        if not self.abandoned and len(self._idle) < _KEPT_IDLE:
            self._idle.append(self)
            return
        if last is not None:
            self._inbox.put(_Job(last, None))
        self._inbox.put(None)

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Run `call` on the thread and wait for it, without blocking the event loop. What it raises is raised here."""
        if self.abandoned:
            raise RuntimeError("this thread is still busy with a call that was cancelled")
        job = _Job(partial(call, *args), anyio.lowlevel.current_token())
        self._inbox.put(job)
        try:
            await job.turn.wait()
            while job.wanted is not None:
                wanted, job.wanted, job.turn = job.wanted, None, anyio.Event()
                self._inbox.put(await _answer(wanted))
                await job.turn.wait()
        except anyio.get_cancelled_exc_class():
            await self._leave(job)
            raise
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def wait_for(self, call: Callable[[], Awaitable[T]]) -> T:
        """Have `call` awaited on the event loop; for code on this thread."""
        job = self._current
        if job is None or self.abandoned:
            raise LeftBehind
        job.wanted = call
        job.wake()
        while not isinstance(item := self._inbox.get(), _Answer):
            if item is None:
                self._inbox.put(None)
                raise LeftBehind
            self._do(item)
        if item.error is not None:
            raise item.error
        result: T = item.result
        return result

    async def _leave(self, job: "_Job") -> None:
        """End a cancelled call: at once where it awaits something, and else if it does not take long."""
        with anyio.move_on_after(_GRACE_SECONDS, shield=True):
            while not job.done:
                job.wanted, job.turn = None, anyio.Event()
                self._inbox.put(_Answer(error=LeftBehind()))
                await job.turn.wait()
        self.abandoned = self.abandoned or not job.done

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            if isinstance(item, _Job):
                self._do(item)
            del item  # An idle thread keeps nothing of its last owner alive.

    def _do(self, job: "_Job") -> None:
        outer, self._current = self._current, job if job.token else None
        try:
            job.result = job.call()
        except BaseException as e:
            job.error = e
        self._current = outer
        job.done = True
        job.wake()


class ByHand:
    """The home of an environment that is used in a script or a notebook, where there is no episode's thread.

    Asynchronous code runs on one event loop in the background, the same for all, so that what `setup` opened there
    works in a tool. It does not matter whether the caller runs an event loop of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token: anyio.lowlevel.EventLoopToken | None = None

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        return await anyio.to_thread.run_sync(partial(call, *args))

    def wait_for(self, call: Callable[[], Awaitable[T]]) -> T:
        async def main() -> T:
            return await call()

        return anyio.from_thread.run(main, token=self._loop())

    def forget(self) -> None:
        """Start another event loop when one is needed."""
        self._token = None

    def _loop(self) -> anyio.lowlevel.EventLoopToken:
        with self._lock:
            if self._token is None:
                started: SimpleQueue[anyio.lowlevel.EventLoopToken] = SimpleQueue()
                threading.Thread(target=anyio.run, args=(_stay, started), name="moonmill-loop", daemon=True).start()
                self._token = started.get()
            return self._token


BY_HAND = ByHand()


# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=OwnerThread.forget)
os.register_at_fork(after_in_child=BY_HAND.forget)


class _Answer(Struct):
    """What came of something the thread wanted awaited."""

    result: Any = None
    error: BaseException | None = None


class _Job:
    """A call on its way from the event loop to the thread and back; without a token nobody waits for it."""

    def __init__(self, call: Callable[[], Any], token: anyio.lowlevel.EventLoopToken | None) -> None:
        self.call = call
        self.token = token
        self.wanted: Callable[[], Awaitable[Any]] | None = None
        self.turn = anyio.Event()
        """Set when the event loop has something to do: what is `wanted`, or to take the result."""
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def wake(self) -> None:
        """Tell the event loop that it is its turn."""
        if self.token is not None:
            # What the two backends call the same. `anyio.from_thread` would wait for the event loop, at twice the cost.
            loop: Any = self.token.native_token
            soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
            with suppress(RuntimeError):  # The event loop has ended meanwhile: nobody waits.
                soon(lambda: self.turn.set())


async def _answer(wanted: Callable[[], Awaitable[Any]]) -> _Answer:
    try:
        return _Answer(await wanted())
    except BaseException as e:
        if is_interruption(e):
            raise
        return _Answer(error=e)


async def _stay(started: "SimpleQueue[anyio.lowlevel.EventLoopToken]") -> None:
    started.put(anyio.lowlevel.current_token())
    await anyio.sleep_forever()
