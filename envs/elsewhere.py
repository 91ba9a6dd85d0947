"""Waiting for something that goes on on a third side: neither on an episode's thread nor on the authors' event loop.

Whatever it is begins when `begin` is called and delivers an `Answer`, once, from any thread. Who waits can be a thread
or a task on any event loop; where it gives up, because it is cancelled, the thing is called off.
"""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import anyio

from moonmill.envs.loop import GRACE_SECONDS, Answer, Bell, on_authors_loop
from moonmill.envs.threads import owner_thread
from moonmill.errors import EnvCodeError

Deliver = Callable[[Answer], None]
CallOff = Callable[[], None]
Begin = Callable[[Deliver], CallOff]
"""Begins, and returns what calls it off; both come back at once, on any thread."""

_LOOK_SECONDS = 0.5
"""Python sees a signal that came in the very instant before a wait when the wait ends."""
_GRACE_SECONDS = GRACE_SECONDS / 2
"""What is called off may take so long to end; less than whoever is cancelled has itself."""


def wait_on_thread(begin: Begin) -> Any:
    """Wait in synchronous code. On an episode's thread, cancelling the episode ends the waiting.

    Raises:
        EnvCodeError: this is the authors' event loop, which must not wait so.
    """
    if on_authors_loop():
        raise EnvCodeError(
            "asynchronous code has called what blocks, which would hold up that of all episodes: call a worker in "
            "`def`; for a sandbox write `await self.sandbox.aio.exec(…)` and `async with self.open_sandbox()`"
        )
    thread = owner_thread()
    return thread.wait_elsewhere(begin) if thread is not None else _wait_plainly(begin)


async def wait_on_loop(begin: Begin) -> Any:
    """Wait in asynchronous code, on any event loop."""
    bell = Bell()
    answers: list[Answer] = []

    def deliver(answer: Answer) -> None:
        answers.append(answer)
        bell.ring()

    call_off = begin(deliver)
    try:
        await bell.heard()
    except anyio.get_cancelled_exc_class():
        call_off()
        with anyio.move_on_after(_GRACE_SECONDS, shield=True):
            await bell.heard()
        raise
    return answers[0].given()


def _wait_plainly(begin: Begin) -> Any:
    """On a thread that is nobody's: a script's main thread, or one that an author has started."""
    answers: SimpleQueue[Answer] = SimpleQueue()
    call_off = begin(answers.put)
    answer: Answer | None = None
    try:
        while answer is None:
            with suppress(Empty):
                answer = answers.get(timeout=_LOOK_SECONDS)
    except BaseException:  # Ctrl-C
        call_off()
        raise
    return answer.given()
