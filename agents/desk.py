"""Where the program of one episode is answered: between the proxy's thread and the event loop of the episode.

Requests arrive on the proxy's thread (`moonmill.agents.proxy`) and are answered on the episode's own event loop, where
agents and the way to the engine live. What always holds: a request is answered or refused, also where the episode ends
meanwhile; a client that goes away has its sampling cancelled.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from moonmill.agents.engine.protocol import ApiError
from moonmill.agents.players import Player, Said
from moonmill.agents.proxy import Proxy
from moonmill.blame import text_of
from moonmill.envs import Endpoint
from moonmill.envs.loop import Bell, soon_here
from moonmill.errors import ContextFullError, EngineError, MoonmillError, PromptTooLongError, RenderError
from moonmill.types import StopReason

MOST_AT_ONCE = 64
"""Requests of one episode: a program that floods is told to wait. OpenAI's clients then come back by themselves."""
_MOST_TOKENS = 1_000_000
"""Of a request to an agent that does not say how long its context is."""


class Desk:
    """Answers the requests of one episode.

    Args:
        player: what is asked, and records it.
        aside: what is asked where nothing is to be recorded.
        max_turns: answers, after which the program is cancelled.
        max_length: the longest context in tokens; None where that is not known.
    """

    def __init__(self, player: Player, aside: Player, max_turns: int, max_length: int | None) -> None:
        self._players = {True: player, False: aside}
        self.max_length = max_length or _MOST_TOKENS
        self.answered = 0
        """Requests that are recorded."""
        self.aside = 0
        """Those that are not."""
        self.seconds = 0.0
        """With at least one request under way."""
        self.met: StopReason | None = None
        """The last limit that a request has met."""
        self.refused: MoonmillError | None = None
        """What was said of it, where that was of the context."""
        self.failure: MoonmillError | None = None
        """Why an answer could not be had: the infrastructure's fault, or the environment's."""
        self.left: EOFError | None = None
        """The player has left."""
        self._max_turns = max_turns
        self._asked = 0
        self._under_way = 0
        self._since = 0.0
        self._inbox: deque[_Request] = deque()
        self._attended: set[_Request] = set()
        self._bell: Bell
        self._soon: Callable[..., Any]
        self._is_over = False
        self._scope = anyio.CancelScope()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Endpoint]:
        """Be there for a program. What is inside is cancelled where its limit is met, or an answer cannot be had."""
        self._soon, self._bell = soon_here(), Bell()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._attend, tasks)
            endpoint, proxy = Proxy.open(self)
            try:
                with self._scope:
                    yield endpoint
            finally:
                proxy.close(endpoint.key)
                self._is_over = True
                self._turn_away()
                for request in self._attended:  # A task that has not begun yet ends without a word.
                    request.settle(_over())
                tasks.cancel_scope.cancel()

    async def ask(self, work: Callable[[Player, int], Awaitable[Said]], recorded: bool) -> Said:
        """Have something answered; called on the proxy's event loop.

        Args:
            work: asks a player, in the request of that number.
            recorded: whether the answer is to be trained on.

        Raises:
            ApiError: there is no answer.
        """
        request = _Request(work, recorded)
        self._inbox.append(request)
        self._bell.ring()
        if self._is_over:
            self._turn_away()
        try:
            return await request.answer
        finally:
            with suppress(RuntimeError):  # the event loop of the episode has ended
                self._soon(request.drop)

    async def _attend(self, tasks: TaskGroup) -> None:
        while True:
            await self._bell.heard()
            while self._inbox:
                self._begin(self._inbox.popleft(), tasks)

    def _turn_away(self) -> None:
        """Settle what nobody will attend to any more; from any thread."""
        with suppress(IndexError):
            while True:
                self._inbox.popleft().settle(_over())

    def _begin(self, request: "_Request", tasks: TaskGroup) -> None:
        if self._under_way >= MOST_AT_ONCE:
            request.settle(ApiError(f"more than {MOST_AT_ONCE} requests of one episode at once: wait", 429))
        elif self._asked >= self._max_turns:
            self.met = StopReason.MAX_TURNS
            request.settle(ApiError(f"the episode has had its {self._max_turns} answers (max_turns)", 403))
            self._scope.cancel()
        else:
            if not self._under_way:
                self._since = time.monotonic()
            self._asked += 1
            self._under_way += 1
            self._attended.add(request)
            tasks.start_soon(self._answer, request, self._asked)

    async def _answer(self, request: "_Request", number: int) -> None:
        result: Said | ApiError = _over()
        try:
            with request.droppable():
                result = await request.work(self._players[request.recorded], number)
                self.answered += request.recorded
                self.aside += not request.recorded
        except (PromptTooLongError, ContextFullError) as e:
            self.met, self.refused = StopReason.MAX_TOKENS, e
            text = f"this model's maximum context length is {self.max_length} tokens: {text_of(e)}"
            result = ApiError(text, param="messages", code="context_length_exceeded")
        except RenderError as e:
            result = ApiError(text_of(e), param="messages")
        except EOFError as e:
            self.left = e
            self._scope.cancel()
        except Exception as e:
            self.failure = e if isinstance(e, MoonmillError) else EngineError(f"the agent raised {e!r}")
            result = ApiError(f"the model cannot be asked: {text_of(e)}", 503)
            self._scope.cancel()
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.seconds += time.monotonic() - self._since
            self._attended.discard(request)
            request.settle(result)


class _Request:
    """A request on its way; made on the proxy's event loop."""

    def __init__(self, work: Callable[[Player, int], Awaitable[Said]], recorded: bool) -> None:
        self.work = work
        self.recorded = recorded
        self._scope: anyio.CancelScope | None = None
        self._dropped = False
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Said] = self._loop.create_future()

    @contextmanager
    def droppable(self) -> Iterator[None]:
        """Work on it here; cancelled where it is dropped."""
        with anyio.CancelScope() as self._scope:
            if self._dropped:
                self._scope.cancel()
            yield

    def drop(self) -> None:
        """Nobody waits for it any more; on the event loop where it is worked on."""
        self._dropped = True
        if self._scope is not None:
            self._scope.cancel()

    def settle(self, result: Said | ApiError) -> None:
        """Give the answer; from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, result)

    def _settle(self, result: Said | ApiError) -> None:
        if self.answer.done():
            return
        if isinstance(result, ApiError):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


def _over() -> ApiError:
    return ApiError("the episode is over, and its key with it", 401, code="invalid_api_key")
