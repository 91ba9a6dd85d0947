"""One thread per episode for the environment's blocking code.

Everything synchronous of one environment runs on one thread, in order: a blocking tool stalls only its own episode, and
objects that belong to a thread (a database connection) stay on theirs. Code on the thread may have something awaited
(`wait_for`), which happens at the episode's desk on the authors' event loop; what is awaited may again run something on
the thread. All of it belongs to the task that called `run`: cancelling that cancels what is being awaited.

Idle threads are used again. A blocking call cannot be cancelled: after a short grace its thread is left behind, never
used again, and ends when the call returns.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import anyio

from moonmill.blame import LeftBehind, is_interruption
from moonmill.envs.loop import GRACE_SECONDS, Answer, Bell, Desk, LoopKeeper, end_if_forked, on_authors_loop
from moonmill.errors import EnvCodeError

T = TypeVar("T")
_KEPT_IDLE = 256
"""More idle threads than this are ended."""


class Home(Protocol):
    """Where an environment's code runs: synchronous code on one side, asynchronous code on the other."""

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """From an event loop: run something synchronous."""
        ...

    def wait_for(self, call: Callable[[], Awaitable[T]]) -> T:
        """From synchronous code: have something awaited on the authors' event loop."""
        ...


class OwnerThread:
    """A thread that runs one call after another for one owner. Get one with `acquire`, give it back with `release`."""

    _idle: deque["OwnerThread"] = deque()

    def __init__(self) -> None:
        self.abandoned = False
        """A call was cancelled and has not ended: the thread is of no more use."""
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._current: _Job | None = None
        self._desk: Desk | None = None
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
        if self._desk is not None:
            self._desk.close()
            self._desk = None
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
        bell = Bell()
        job = _Job(partial(call, *args), bell)
        self._inbox.put(job)
        try:
            await bell.heard()
            while job.wanted is not None:
                wanted, job.wanted = job.wanted, None
                self._inbox.put((job, await self._answer(wanted)))
                await bell.heard()
        except anyio.get_cancelled_exc_class():
            await self._leave(job, bell)
            raise
        if isinstance(job.answer.error, LeftBehind):
            raise EnvCodeError("its code was left behind, though nobody had cancelled it") from job.answer.error
        result: T = job.answer.given()
        return result

    def wait_for(self, call: Callable[[], Awaitable[T]]) -> T:
        """Have `call` awaited; for code on this thread."""
        job = self._current
        if job is None or job.bell is None or self.abandoned:
            raise LeftBehind
        job.wanted = call
        job.bell.ring()
        while (item := self._inbox.get()) is not None:
            if isinstance(item, _Job):
                self._do(item)
            elif item[0] is job:
                result: T = item[1].given()
                return result
            elif not item[0].done:  # What this is a part of has been answered: nobody awaits it any more.
                self._inbox.put(item)
                raise LeftBehind
        self._inbox.put(None)
        raise LeftBehind

    def wait_elsewhere(self, begin: Callable[[Callable[[Answer], None]], Callable[[], None]]) -> Any:
        """Wait for what goes on on neither side; for code on this thread. `envs.elsewhere` says what `begin` is.

        Who asks for the thread meanwhile has to wait as well: its calls run one after another.
        """
        job = self._current
        if job is None or job.left or self.abandoned:
            raise LeftBehind
        mark = _Job(_nothing, None)
        mark.done = True  # An answer that comes too late is passed over.
        later: list[_Item] = []
        call_off = begin(lambda answer: self._inbox.put((mark, answer)))
        try:
            while True:
                item = self._inbox.get()
                if isinstance(item, _Job):
                    later.append(item)
                elif item is not None and item[0] is mark:
                    return item[1].given()
                elif item is None or not item[0].done:  # Nobody waits for this any more, or for what it is a part of.
                    if item is None or item[0] is not job:
                        later.append(item)
                    raise LeftBehind
        except LeftBehind:
            call_off()
            raise
        finally:
            for item in later:
                self._inbox.put(item)

    async def await_apart(self, call: Callable[[], Awaitable[T]]) -> T:
        """Have `call` awaited on the authors' event loop though the thread, or what it awaits, has been left behind."""
        desk = Desk() if self._desk is None or self._desk.left else self._desk
        try:
            return await desk.do(call)
        finally:
            if desk is not self._desk:
                desk.close()

    async def _answer(self, wanted: Callable[[], Awaitable[Any]]) -> Answer:
        try:
            if on_authors_loop():
                return Answer(await wanted())  # Asynchronous code has run something here, which awaits in turn.
            if self._desk is not None and self._desk.left:
                self._desk.close()
                self._desk = None
            self._desk = self._desk or Desk()
            return Answer(await self._desk.do(wanted))
        except BaseException as e:
            if is_interruption(e):
                raise
            return Answer(error=e)

    async def _leave(self, job: "_Job", bell: Bell) -> None:
        """End a cancelled call: at once where it awaits something, and else if it does not take long."""
        job.left = True
        with anyio.move_on_after(GRACE_SECONDS, shield=True):
            while not job.done:
                job.wanted = None
                self._inbox.put((job, Answer(error=LeftBehind())))
                await bell.heard()
        if on_authors_loop():
            return  # The thread goes on with the job that awaits this, and that nobody has cancelled.
        # What was awaited may still go on, and call for the thread.
        self.abandoned = self.abandoned or not job.done or (self._desk is not None and self._desk.left)

    def _work(self) -> None:
        _here.owner = self
        while (item := self._inbox.get()) is not None:
            if isinstance(item, _Job):
                self._do(item)
            del item  # An idle thread keeps nothing of its last owner alive.

    def _do(self, job: "_Job") -> None:
        outer, self._current = self._current, job
        process = os.getpid()
        try:
            job.answer = Answer(job.call())
        except BaseException as e:
            job.answer = Answer(error=e)
        end_if_forked(process)
        self._current = outer
        job.done = True
        if job.bell is not None:
            job.bell.ring()


def owner_thread() -> OwnerThread | None:
    """The episode's thread that this is, if it is one."""
    return getattr(_here, "owner", None)


_here = threading.local()


def _nothing() -> None: ...


async def on_a_thread(call: Callable[..., T], *args: Any) -> T:
    """Run `call` on an idle thread. Cancelled, it is left behind, and holds up not even the end of the process."""
    thread = OwnerThread.acquire()
    try:
        return await thread.run(call, *args)
    finally:
        thread.release()


class ByHand:
    """The home of an environment that is used in a script or a notebook, where there is no episode's thread.

    It does not matter whether the caller runs an event loop of its own: asynchronous code runs on another.
    """

    def __init__(self) -> None:
        self._keeper = LoopKeeper()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        return await on_a_thread(call, *args)

    def wait_for(self, call: Callable[[], Awaitable[T]]) -> T:
        async def main() -> T:
            return await call()

        future = Context().run(asyncio.run_coroutine_threadsafe, main(), self._keeper.get().loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


BY_HAND = ByHand()
# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=OwnerThread.forget)


class _Job:
    """A call on its way from an event loop to the thread and back; without a bell nobody waits for it."""

    def __init__(self, call: Callable[[], Any], bell: Bell | None) -> None:
        self.call = call
        self.bell = bell
        """Rung when the event loop has something to do: what is `wanted`, or to take the answer."""
        self.wanted: Callable[[], Awaitable[Any]] | None = None
        self.done = False
        self.left = False
        """It was cancelled: nobody waits for it any more."""
        self.answer = Answer()


_Item = _Job | tuple[_Job, Answer] | None
"""What is put before a thread: a call, an answer to what a call waits for, or that nothing more will come."""
