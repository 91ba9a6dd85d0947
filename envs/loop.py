"""Authors' asynchronous code: on an event loop of its own, one for the process, in the background.

So a coroutine that blocks, or that ignores being cancelled, holds up neither the trainer nor the end of the process: it
is left behind. A loop that is blocked is left behind as well: who waits for it is told where, and the next episodes get
another.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from msgspec import Struct

from moonmill.blame import LeftBehind, place_on
from moonmill.errors import EnvCodeError

T = TypeVar("T")
GRACE_SECONDS = 0.2
"""What a cancelled call may still take to end by itself: most do, and then the episode can be closed in order."""
_BLOCKED_SECONDS = 30.0
"""A loop that does nothing for so long is blocked."""
_WATCH_SECONDS = 1.0
_CANCELLED = "the environment has cancelled the task that runs its asynchronous code"


class Answer(Struct):
    """What came of something that was awaited elsewhere."""

    result: Any = None
    error: BaseException | None = None

    def given(self) -> Any:
        """The result; an error is raised."""
        if self.error is not None:
            raise self.error
        return self.result


class Bell:
    """Rung from any thread, heard on the event loop where it was made."""

    def __init__(self) -> None:
        self._soon = soon_here()
        self._rung = anyio.Event()

    async def heard(self) -> None:
        """Wait until it is rung."""
        await self._rung.wait()
        self._rung = anyio.Event()

    def ring(self) -> None:
        with suppress(RuntimeError):  # The event loop has ended meanwhile: nobody waits.
            self._soon(lambda: self._rung.set())


def soon_here() -> Callable[..., Any]:
    """What calls something on this event loop, from any thread. It raises `RuntimeError` once the loop has ended."""
    # What the two backends call the same. `anyio.from_thread` would wait for the event loop, at twice the cost.
    loop: Any = anyio.lowlevel.current_token().native_token
    soon: Callable[..., Any] = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return soon


class AuthorsLoop:
    """An event loop for authors' code, on a thread that starts at once."""

    def __init__(self) -> None:
        self.is_suspect = False
        """It was slow to hear of something: who has begun on it stays, and the next get another."""
        self._lock = threading.Lock()
        self._waiting: set[Request] = set()
        self._lost: str | None = None
        started: SimpleQueue[asyncio.AbstractEventLoop] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(started,), name="moonmill-loop", daemon=True)
        self._thread.start()
        self.loop = started.get()

    @property
    def is_usable(self) -> bool:
        """It has neither ended nor been found blocked."""
        return self._lost is None

    def expect(self, request: "Request") -> None:
        """Promise an answer to a request, be it that the loop is lost."""
        with self._lock:
            if self._lost is None:
                self._waiting.add(request)
                return
        request.settle(_failed(self._lost))

    def forget(self, request: "Request") -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._waiting.discard(request)

    def soon(self, call: Callable[..., Any], *args: Any) -> None:
        """Have something called on the loop, in a context of its own."""
        with suppress(RuntimeError):  # The loop has ended.
            self.loop.call_soon_threadsafe(call, *args, context=Context())

    def watch(self) -> None:
        """Tell all who wait when the loop is blocked; does not return before."""
        while self._is_alive():
            time.sleep(_WATCH_SECONDS)
        frame = sys._current_frames().get(self._thread.ident or 0)
        where = f", at {place_on(frame)}" if frame is not None else ""
        self._lose(
            f"asynchronous code of an environment has blocked the event loop of them all for {_BLOCKED_SECONDS:g} s"
            f"{where}: write what blocks as `def`, not `async def`"
        )

    def _run(self, started: "SimpleQueue[asyncio.AbstractEventLoop]") -> None:
        with suppress(BaseException), asyncio.Runner() as runner:
            try:
                runner.run(_stay(started))
            except BaseException as e:  # after `loop.stop()`, or a task that raised what ends a process
                self._lose(f"asynchronous code of an environment has ended the event loop of them all: {e!r}")

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = why
            waiting = list(self._waiting)
        for request in waiting:
            request.settle(_failed(why))

    def _is_alive(self) -> bool:
        alive = threading.Event()
        self.soon(alive.set)
        return alive.wait(_BLOCKED_SECONDS)


class LoopKeeper:
    """Has a usable loop for who wants one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: AuthorsLoop | None = None
        os.register_at_fork(after_in_child=self._forget)  # A forked process has none of its parent's threads.

    def get(self) -> AuthorsLoop:
        with self._lock:
            if self._kept is None or self._kept.is_suspect or not self._kept.is_usable:
                self._kept = AuthorsLoop()
                threading.Thread(target=self._kept.watch, name="moonmill-loop-watch", daemon=True).start()
            return self._kept

    def _forget(self) -> None:
        self._lock, self._kept = threading.Lock(), None


KEEPER = LoopKeeper()
"""Of the loop that all episodes share."""


class Desk:
    """One task on the authors' loop that awaits one thing after another, for one episode.

    It is the same task all along, so that a task group or a client that `setup` has entered can be left in `close`.
    Context variables are the episode's own: none are taken over from the event loop that asks.
    """

    def __init__(self) -> None:
        self._left = False
        self._home = KEEPER.get()
        self._inbox: asyncio.Queue[Request | None] = asyncio.Queue()
        self._current: Request | None = None
        self._task: asyncio.Task[None]
        self._home.soon(self._open)

    @property
    def left(self) -> bool:
        """It is of no more use: what it awaits does not end, or its task was cancelled, or the loop is blocked."""
        return self._left or not self._home.is_usable

    async def do(self, wanted: Callable[[], Awaitable[T]]) -> T:
        """Have `wanted` awaited, for an event loop that is not the authors'. What it raises is raised here."""
        request = Request(wanted)
        self._home.expect(request)
        self._home.soon(self._receive, request)
        try:
            await request.bell.heard()
        except anyio.get_cancelled_exc_class():
            await self._leave(request)
            raise
        finally:
            self._home.forget(request)
        result: T = request.answer.given()
        return result

    def close(self) -> None:
        """Nothing more will be asked."""
        self._home.soon(self._inbox.put_nowait, None)

    async def _leave(self, request: "Request") -> None:
        self._home.soon(self._cancel, request)
        with anyio.move_on_after(GRACE_SECONDS, shield=True):
            await request.bell.heard()
            return
        self._left = True
        self.close()
        # A loop that has not even heard of it may be blocked, or busy.
        self._home.is_suspect = self._home.is_suspect or not request.is_cancelled

    # On the authors' loop from here on.

    def _open(self) -> None:
        self._task = self._home.loop.create_task(self._work())

    def _receive(self, request: "Request") -> None:
        if self._task.done():
            request.settle(_failed(_CANCELLED))
        else:
            self._inbox.put_nowait(request)

    def _cancel(self, request: "Request") -> None:
        request.is_cancelled = True
        if self._current is request:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while (request := await self._inbox.get()) is not None:
                if not request.is_cancelled:
                    await self._serve(request)
                del request  # An idle desk keeps nothing alive.
        finally:  # A task group that `setup` entered is cancelled when one of its tasks fails, and this task with it.
            self._left = True
            while not self._inbox.empty():
                if (waiting := self._inbox.get_nowait()) is not None:
                    waiting.settle(_failed(_CANCELLED))

    async def _serve(self, request: "Request") -> None:
        self._current = request
        process = os.getpid()
        try:
            answer = Answer(await request.wanted())
        except BaseException as e:
            answer = Answer(error=e)
        end_if_forked(process)
        self._current = None
        if request.is_cancelled:
            self._task.uncancel()
        request.settle(answer)


class Request:
    """Something to await, on its way to a desk and back."""

    def __init__(self, wanted: Callable[[], Awaitable[Any]]) -> None:
        self.wanted = wanted
        self.bell = Bell()
        self.answer = Answer(error=LeftBehind())
        self.is_cancelled = False
        self._is_settled = False

    def settle(self, answer: Answer) -> None:
        """Answer it, unless it has been answered: what was told of a lost loop stands."""
        if not self._is_settled:
            self._is_settled, self.answer = True, answer
            self.bell.ring()


def end_if_forked(process: int) -> None:
    """End a copy of `process` that author's code has forked and let come back to us: nobody waits for it."""
    if os.getpid() != process:
        os._exit(0)


def on_authors_loop() -> bool:
    """Whether this is the thread of a loop for authors' code."""
    return hasattr(_here, "stays")


_here = threading.local()


async def _stay(started: "SimpleQueue[asyncio.AbstractEventLoop]") -> None:
    _here.stays = True
    started.put(asyncio.get_running_loop())
    await asyncio.Event().wait()


def _failed(why: str) -> Answer:
    return Answer(error=EnvCodeError(why))
