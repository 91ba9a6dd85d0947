"""The way to the engines: token ids out, token ids and log-probabilities back, over vLLM's HTTP requests.

What always holds:

- A token that has arrived is kept, with its log-probability and the version it was sampled under. Whatever interrupts a
  completion (a new version, a dropped connection, an engine that is started again elsewhere), it goes on from the
  prompt and the tokens so far: at once on another engine, where one is up.
- The version of a token is the one its request named when it was sent.
- Every wait has a bound, and an error says where, what was last seen, and how often it was tried.
"""

import time
from collections.abc import Callable, Sequence
from typing import Literal

import anyio
import httpx

from moonmill.agents import wire
from moonmill.agents.lanes import Lanes
from moonmill.agents.pending import Run, version_name
from moonmill.agents.routing import Route, Router
from moonmill.agents.streams import RefusalError
from moonmill.errors import EngineError, PromptTooLongError
from moonmill.types import Completion, Sampling

_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0
_TOO_LONG = ("maximum context length", "max_model_len", "max_tokens must be at least 1")
"""What engines say of a completion that does not fit: the embedded one the first alone, vLLM also the others. The last
is of a prompt that fills the context: we never ask for less than one token."""

__all__ = ["InferenceClient", "version_name"]


class InferenceClient:
    """Talks to one engine, or to several that serve the same versions. To be used as an async context.

    A request goes to the engine with the fewest in flight, or, where it belongs to a session, to the engine of that
    session unless it is much busier than others (`moonmill.agents.routing`).

    Args:
        base_urls: the engines' roots, such as `http://127.0.0.1:8000`; their places number the engines.
        version: the version that requests are sent under at first.
        on_new_version: what `use_version` does to running completions: `interrupt` lets them go on under the new one,
            `finish` under the one they began with.
        request_timeout: seconds without a byte from the engine before a request is given up and tried again.
        recover_timeout: seconds a completion waits for an engine that is out of reach, or has not got its version yet.
        max_attempts: how often a request that makes no progress is tried at engines that are there; once at each of
            them counts as one.
        on_unknown_version: told the place of an engine and a version that it has answered not to have.
        vocabulary: how many tokens the model has, so that others are refused; None where that is not known.
    """

    def __init__(
        self,
        base_urls: str | Sequence[str],
        *,
        version: int = 0,
        on_new_version: Literal["interrupt", "finish"] = "interrupt",
        request_timeout: float = 120.0,
        recover_timeout: float = 120.0,
        max_attempts: int = 5,
        on_unknown_version: Callable[[int, int], None] = lambda engine, version: None,
        vocabulary: int | None = None,
    ) -> None:
        self.version = version
        self.queued = 0.0
        """Seconds that requests have waited for their first tokens, all requests so far together: for their turn at the
        engine, and for their prompts to be computed."""
        self._on_unknown_version = on_unknown_version
        self._vocabulary = vocabulary
        self._router = Router([base_urls] if isinstance(base_urls, str) else base_urls)
        self._interrupts = on_new_version == "interrupt"
        self._recover_timeout = recover_timeout
        self._max_attempts = max_attempts
        self._running: set[Run] = set()
        self._moved = anyio.Event()
        self._resumed = anyio.Event()
        self._resumed.set()
        self._lanes = Lanes(request_timeout)

    async def __aenter__(self) -> "InferenceClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lanes.aclose()

    def set_base_url(self, url: str, engine: int = 0) -> None:
        """An engine is up, at this place; completions that wait for one continue there."""
        self._router.move(engine, url)
        self._moved.set()
        self._moved = anyio.Event()

    def set_away(self, engine: int = 0) -> None:
        """An engine is out of use until it gets a base URL; its completions go on elsewhere, or wait."""
        for run in self._router.close(engine):
            run.interrupt()

    def pause(self) -> None:
        """Send nothing until `resume`, which has to come; completions under way go on then."""
        self._resumed = anyio.Event()
        for run in self._running:
            run.interrupt()

    def resume(self) -> None:
        """Send again."""
        self._resumed.set()

    def in_flight(self) -> tuple[int, ...]:
        """How many requests each engine has now."""
        return self._router.in_flight()

    async def complete(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        seed: int,
        stop_token_ids: Sequence[int],
        session: str = "",
    ) -> Completion:
        """Sample a completion of `prompt`.

        Args:
            prompt: token ids.
            sampling: how tokens are drawn.
            seed: with it, the same prompt under one version, uninterrupted, gives the same tokens.
            stop_token_ids: the completion ends with the first of them, which is part of it.
            session: names a conversation, so that its completions stay on one engine; also sent along for routers.

        Raises:
            PromptTooLongError: the engine's context has no room for the completion.
            EngineError: no engine can be reached, or the request fails, for longer than the retries cover.
        """
        run = Run(prompt, sampling, seed, frozenset(stop_token_ids), session)
        run.version = self.version
        run.vocabulary = self._vocabulary or run.vocabulary
        self._running.add(run)
        try:
            await self._finish(run)
        finally:
            self._running.discard(run)
        return Completion(tuple(run.tokens), tuple(run.logprobs), tuple(run.versions), run.finish)

    async def use_version(self, version: int) -> None:
        """Send new requests to `version`; running ones go on under it too, where they are to be interrupted."""
        self.version = version
        if self._interrupts:
            for run in self._running:
                run.switch(version)

    async def _finish(self, run: Run) -> None:
        """Send a run as often as it takes to finish it."""
        trouble = _Trouble()
        while not run.is_over():
            await self._resumed.wait()
            moved, before, run.switched = self._moved, len(run.tokens), False
            route = self._router.choose(run.session, trouble.tried, time.monotonic())
            error = await self._attempt(run, route) if route else RefusalError(503, "no engine is up")
            if run.is_over() or run.switched:
                trouble = _Trouble()
                continue
            if len(run.tokens) > before:
                trouble = _Trouble()
            trouble.add(route, error)
            if wire.is_unknown_version(error) and run.version != self.version:
                run.version = self.version
                self._raise_if_hopeless(run, trouble)
                continue
            if route and self._router.has_other(trouble.tried, time.monotonic()):
                continue
            self._raise_if_hopeless(run, trouble)
            with anyio.move_on_after(min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(trouble.rounds - 1, 10))):
                await moved.wait()

    async def _attempt(self, run: Run, route: Route) -> Exception:
        """Send one request and take in what arrives; returns why nothing further comes.

        Raises:
            EngineError: trying again cannot help.
        """
        error: Exception = RefusalError(503, "the answer ended before its last token")
        version = run.version
        route.runs.add(run)
        queue = _Queue(run)
        try:
            with anyio.CancelScope() as run.scope:
                await wire.sample(self._lanes, route.url, run, route.answered, queue.look)
        except RefusalError as e:
            self._raise_if_final(run, route, e)
            if wire.is_unknown_version(e):
                self._on_unknown_version(self._router.routes.index(route), version)
            error = e
        except httpx.HTTPError as e:
            error = e
            if wire.is_out_of_reach(e):
                route.miss(time.monotonic())
        finally:
            run.scope = None
            route.runs.discard(run)
            self.queued += queue.seconds()
        return error

    def _raise_if_hopeless(self, run: Run, trouble: "_Trouble") -> None:
        """End a round of attempts; engines that are there get some rounds, those that are not get some time."""
        if not trouble.end_round(time.monotonic(), self._max_attempts, self._recover_timeout):
            return
        if trouble.error is None:
            raise EngineError(f"no engine was up for {self._recover_timeout:g} s, so a request was given up")
        raise EngineError(
            f"{trouble.where} did not complete a request under {version_name(run.version)} in {trouble.attempts} "
            f"attempts ({len(run.tokens)} tokens had arrived); the last error: {wire.say(trouble.error)}"
        ) from trouble.error

    def _raise_if_final(self, run: Run, route: Route, error: RefusalError) -> None:
        """Raise where trying again cannot help."""
        if error.status in (400, 413) and any(words in error.message for words in _TOO_LONG):
            raise PromptTooLongError(
                f"a prompt of {len(run.prompt)} tokens and up to {run.sampling.max_tokens} more do not fit the "
                f"engine's context: {error.message}"
            ) from error
        if 400 <= error.status < 500 and error.status not in (404, 408, 429):
            raise EngineError(f"{route.url} refused a request: {error.message}") from error


class _Queue:
    """How long a request waits for its first token."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tokens = len(run.tokens)
        self._begin = time.monotonic()
        self._end: float | None = None

    def look(self) -> None:
        """Something has arrived."""
        if self._end is None and len(self._run.tokens) > self._tokens:
            self._end = time.monotonic()

    def seconds(self) -> float:
        """So far, where no token has come."""
        return (self._end or time.monotonic()) - self._begin


class _Trouble:
    """What has gone wrong with a run since a token last arrived. A round tries each engine that is up once."""

    def __init__(self) -> None:
        self.attempts = 0
        self.rounds = 0
        self.tried: set[Route] = set()
        """In this round."""
        self.where = ""
        self.error: Exception | None = None
        self._there = False
        """Whether an engine was there in this round."""
        self._away_since: float | None = None

    def add(self, route: Route | None, error: Exception) -> None:
        """An attempt failed at `route`, or there was none."""
        self.attempts += route is not None
        if route is not None:
            self.tried.add(route)
            self.where, self.error = route.url, error
            self._there |= not wire.is_away(error)

    def end_round(self, now: float, most_rounds: int, most_seconds: float) -> bool:
        """Begin the next round; returns whether there is no hope left."""
        self.rounds += 1
        if self._there:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        there, self._there = self._there, False
        self.tried.clear()
        if there:
            return self.rounds >= most_rounds
        assert self._away_since is not None
        return now - self._away_since > most_seconds
