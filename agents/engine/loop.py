"""The thread that decodes, and the way to it from an event loop.

The scheduler lives in this thread alone. Requests go in through an inbox; what they produce comes out once per step,
all requests' news in one call to the event loop, which is then free to wake those who wait for them.
"""

import asyncio
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import TypeVar

import anyio
import anyio.to_thread
import torch

from moonmill.agents.engine.scheduler import Delta, Params, Request, Scheduler

T = TypeVar("T")

_STOP_SECONDS = 5.0
_BUG_EXIT_CODE = 70


class DecodeLoop:
    """Runs a scheduler. Made and used in an event loop's thread; `start` it there, `stop` it at the end."""

    def __init__(self, scheduler: Scheduler, threads: int) -> None:
        self.scheduler = scheduler
        self._threads = threads
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._out: list[tuple[_Stream, Delta]] = []
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Begin; results go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End after the step in hand. Requests still running say nothing more."""
        self._stopping = True
        self._wake.set()
        # An interpreter that goes away under a running forward crashes.
        await anyio.to_thread.run_sync(self._thread.join, _STOP_SECONDS)

    async def generate(self, version: str, prompt: list[int], params: Params) -> AsyncGenerator[Delta]:
        """The deltas of one request; the last has a finish reason. Leaving early aborts it."""
        stream = _Stream()
        request = Request(version, prompt, params, lambda delta: self._out.append((stream, delta)))
        self._post(lambda: self.scheduler.submit(request))
        finished = False
        try:
            while not finished:
                delta = await stream.next()
                finished = delta.finish is not None
                yield delta
        finally:
            if not finished:
                self._post(lambda: self.scheduler.abort(request))

    async def call(self, function: Callable[[], T]) -> T:
        """Run something between two steps, in the decoding thread."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as e:  # it belongs to whoever called
                future.set_exception(e)

        self._post(run)
        return await asyncio.wrap_future(future)

    def _post(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        self._wake.set()

    def _run(self) -> None:
        try:
            self._decode()
        except (
            BaseException
        ):  # a bug of ours: requests would wait for ever, but whoever watches a process starts another
            traceback.print_exc(file=sys.stderr)
            sys.stderr.flush()
            os._exit(_BUG_EXIT_CODE)

    def _decode(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while not self._stopping:
                if self.scheduler.idle and not self._inbox:
                    self._wake.wait()
                self._wake.clear()
                while self._inbox:
                    self._inbox.popleft()()
                if not self.scheduler.idle:
                    self._step()
                if self._out:
                    out, self._out = self._out, []
                    self._hand_over(out)

    def _step(self) -> None:
        try:
            self.scheduler.step()
        except Exception as e:  # whatever a forward raises, requests must end and the engine go on
            traceback.print_exc(file=sys.stderr)
            self.scheduler.fail(f"a decoding step failed: {type(e).__name__}: {e}")

    def _hand_over(self, out: "list[tuple[_Stream, Delta]]") -> None:
        try:
            self._loop.call_soon_threadsafe(_deliver, out)
        except RuntimeError:  # the event loop has closed: the process is ending
            self._stopping = True


class _Stream:
    """Deltas that have arrived, and the one who waits for more."""

    def __init__(self) -> None:
        self._deltas: deque[Delta] = deque()
        self._arrived = anyio.Event()

    def put(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self._arrived.set()

    async def next(self) -> Delta:
        if not self._deltas:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._deltas.popleft()


def _deliver(out: list[tuple[_Stream, Delta]]) -> None:
    for stream, delta in out:
        stream.put(delta)
