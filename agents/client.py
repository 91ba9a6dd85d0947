"""The way to the engine: token ids out, token ids and log-probabilities back, over vLLM's HTTP requests.

What always holds:

- A token that has arrived is kept, with its log-probability and the version it was sampled under. Whatever interrupts a
  completion (a new version, a dropped connection, an engine that is started again elsewhere), it goes on from the prompt
  and the tokens so far.
- The version of a token is the one its request named when it was sent.
- Every wait has a bound, and an error says where, what was last seen, and how often it was tried.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import anyio
import httpx
import msgspec
from moonmill.agents.streams import Chunk, EngineRefusal, error_of, read_events
from moonmill.errors import EngineError, PromptTooLongError
from moonmill.seeding import derive_seed
from moonmill.types import Completion, FinishReason, Sampling

_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0
_CONNECT_SECONDS = 5.0
_TOO_LONG = "maximum context length"
"""What both vLLM and the embedded engine say of a prompt that does not fit."""
_ALREADY_LOADED = "already been loaded"


def version_name(version: int) -> str:
    """The model name under which an engine serves a version."""
    return f"policy-v{version}"


class InferenceClient:
    """Talks to one engine. To be used as an async context.

    Args:
        base_url: the engine's root, such as `http://127.0.0.1:8000`.
        version: the version that requests are sent under at first.
        on_new_version: what `use_version` does to running completions: `interrupt` lets them go on under the new one,
            `finish` under the one they began with.
        request_timeout: seconds without a byte from the engine before a request is given up and tried again.
        recover_timeout: seconds a completion waits for an engine that is out of reach, or has not got its version yet.
        max_attempts: how often a request that makes no progress is tried at an engine that is there.
        connections: most connections at once; None: no bound.
    """

    def __init__(
        self,
        base_url: str,
        *,
        version: int = 0,
        on_new_version: Literal["interrupt", "finish"] = "interrupt",
        request_timeout: float = 120.0,
        recover_timeout: float = 120.0,
        max_attempts: int = 5,
        connections: int | None = None,
    ) -> None:
        self.version = version
        self._url = base_url.rstrip("/")
        self._interrupts = on_new_version == "interrupt"
        self._recover_timeout = recover_timeout
        self._max_attempts = max_attempts
        self._running: set[_Run] = set()
        self._moved = anyio.Event()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(request_timeout, connect=_CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            # Proxies of the environment are for the outside world; asking for them costs at every start.
            trust_env=False,
        )

    async def __aenter__(self) -> "InferenceClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    def set_base_url(self, url: str) -> None:
        """The engine is elsewhere now; completions in flight continue there."""
        self._url = url.rstrip("/")
        self._moved.set()
        self._moved = anyio.Event()

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
            session: sent along for routers that keep a conversation on one engine.

        Raises:
            PromptTooLongError: the engine's context has no room for the completion.
            EngineError: the engine cannot be reached, or fails the request, for longer than the retries cover.
        """
        run = _Run(prompt, sampling, seed, frozenset(stop_token_ids), session)
        run.version = self.version
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

    async def load_version(self, version: int, path: Path) -> None:
        """Let the engine load a version's weights from a folder; requests still go to the one in use.

        Raises:
            EngineError: the engine would not, or cannot be reached.
        """
        body = {"lora_name": version_name(version), "lora_path": str(path)}
        try:
            await self._post("/v1/load_lora_adapter", body)
        except EngineRefusal as e:
            if _ALREADY_LOADED not in e.message:
                raise EngineError(f"{self._url} did not load version {version} from {path}: {e.message}") from e

    async def unload_version(self, version: int) -> None:
        """Let the engine forget a version. One that it does not know is forgotten already.

        Raises:
            EngineError: the engine would not, or cannot be reached.
        """
        try:
            await self._post("/v1/unload_lora_adapter", {"lora_name": version_name(version)})
        except EngineRefusal as e:
            if e.status != 404:
                raise EngineError(f"{self._url} did not unload version {version}: {e.message}") from e

    async def probe(self, prompt: Sequence[int], sampling: Sampling, version: int) -> float:
        """The log-probability of the likeliest token after `prompt`: a number that other weights change.

        Raises:
            EngineError: the version does not answer.
        """
        run = _Run(prompt, sampling, seed=0, stops=frozenset(), session="")
        run.version = version
        try:
            await self._attempt(run)
        except (EngineRefusal, httpx.HTTPError) as e:
            raise EngineError(f"{self._url} did not answer for version {version}: {_say(e)}") from e
        if not run.logprobs:
            raise EngineError(f"{self._url} answered for version {version} without a single token")
        return run.logprobs[0]

    async def _finish(self, run: "_Run") -> None:
        """Send a run as often as it takes to finish it."""
        failures = 0
        deadline = time.monotonic() + self._recover_timeout
        while not run.is_over:
            moved, before = self._moved, len(run.tokens)
            try:
                with anyio.CancelScope() as run.scope:
                    await self._attempt(run)
                run.scope = None
                if run.is_over:
                    return
                if run.take_switch():
                    failures = 0
                    continue
                error: Exception = EngineRefusal(503, "the answer ended before its last token")
            except (EngineRefusal, httpx.HTTPError) as e:
                error = e
            if isinstance(error, EngineRefusal):
                self._raise_final(run, error)
            if len(run.tokens) > before:
                failures, deadline = 0, time.monotonic() + self._recover_timeout
            failures += 1
            patient = _engine_is_away(error)
            if (not patient and failures >= self._max_attempts) or time.monotonic() > deadline:
                raise EngineError(
                    f"{self._url} did not complete a request under {version_name(run.version)} in {failures} attempts "
                    f"({len(run.tokens)} tokens had arrived); the last error: {_say(error)}"
                ) from error
            if isinstance(error, EngineRefusal) and error.status == 404 and run.version != self.version:
                run.version = self.version
                continue
            with anyio.move_on_after(min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(failures - 1, 10))):
                await moved.wait()

    def _raise_final(self, run: "_Run", error: EngineRefusal) -> None:
        """Raise where trying again cannot help."""
        if error.status == 400 and _TOO_LONG in error.message:
            raise PromptTooLongError(
                f"a prompt of {len(run.prompt)} tokens and up to {run.sampling.max_tokens} more do not fit the engine's "
                f"context: {error.message}"
            ) from error
        if 400 <= error.status < 500 and error.status not in (404, 408, 429):
            raise EngineError(f"{self._url} refused a request: {error.message}") from error

    async def _attempt(self, run: "_Run") -> None:
        """Send one request and take in what arrives."""
        headers = {"Content-Type": "application/json"}
        if run.session:
            headers["X-Session-ID"] = run.session
        url = f"{self._url}/v1/completions"
        async with self._http.stream("POST", url, content=run.body(), headers=headers) as response:
            if response.status_code != 200:
                raise error_of(response.status_code, await response.aread())
            async for chunk in read_events(response.aiter_raw()):
                run.take(chunk)

    async def _post(self, path: str, body: dict[str, str]) -> None:
        try:
            response = await self._http.post(
                self._url + path, content=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as e:
            raise EngineError(f"{self._url}{path}: {_say(e)}") from e
        if response.status_code != 200:
            raise error_of(response.status_code, response.content)


class _Run:
    """One completion: what it asks for, and what has arrived."""

    def __init__(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stops: frozenset[int], session: str
    ) -> None:
        self.prompt = list(prompt)
        self.sampling = sampling
        self.session = session
        self.version = 0
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish: FinishReason = "length"
        self.scope: anyio.CancelScope | None = None
        self._seed = seed
        self._stops = stops
        self._finished = False
        self._switched = False

    @property
    def is_over(self) -> bool:
        """Finished, or complete although the word of it never arrived."""
        if self._finished:
            return True
        if self.tokens and self.tokens[-1] in self._stops:
            self.finish = "stop"
            return True
        return len(self.tokens) >= self.sampling.max_tokens

    def body(self) -> bytes:
        """The request for what is still missing."""
        sampling, so_far = self.sampling, len(self.tokens)
        body = {
            "model": version_name(self.version),
            "prompt": self.prompt + self.tokens,
            "max_tokens": sampling.max_tokens - so_far,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            # Going on with the first seed would draw the first tokens' random numbers again.
            "seed": derive_seed(self._seed, so_far) if so_far else self._seed,
            "stop_token_ids": sorted(self._stops),
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": True,
        }
        return msgspec.json.encode(body)

    def take(self, chunk: Chunk) -> None:
        """Keep a chunk's tokens."""
        for choice in chunk.choices:
            tokens = choice.token_ids or []
            logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else []
            if len(tokens) != len(logprobs):
                raise EngineRefusal(500, f"{len(tokens)} tokens arrived with {len(logprobs)} log-probabilities")
            self.tokens += tokens
            self.logprobs += logprobs
            self.versions += [self.version] * len(tokens)
            if choice.finish_reason in ("stop", "length"):
                self.finish = "stop" if choice.finish_reason == "stop" else "length"
                self._finished = True

    def switch(self, version: int) -> None:
        """Go on under another version, from the tokens so far."""
        if version != self.version:
            self.version = version
            self._switched = True
            if self.scope is not None:
                self.scope.cancel()

    def take_switch(self) -> bool:
        """Whether the version was switched since the last time this was asked."""
        switched, self._switched = self._switched, False
        return switched


def _engine_is_away(error: Exception) -> bool:
    """Whether it is worth waiting for: nobody is there, or it is back and has not got the version yet."""
    if isinstance(error, EngineRefusal):
        return error.status == 404
    return isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | httpx.ConnectTimeout)


def _say(error: Exception) -> str:
    return error.message if isinstance(error, EngineRefusal) else f"{type(error).__name__}: {error}".rstrip(": ")
