"""The way to the engine: token ids out, token ids and log-probabilities back, over vLLM's HTTP requests.

What always holds:

- A token that has arrived is kept, with its log-probability and the version it was sampled under. Whatever interrupts a
  completion (a new version, a dropped connection, an engine that is started again elsewhere), it goes on from the
  prompt and the tokens so far.
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

from moonmill.agents.lanes import Lanes
from moonmill.agents.pending import Run, version_name
from moonmill.agents.streams import EventReader, RefusalError, error_of
from moonmill.errors import EngineError, PromptTooLongError
from moonmill.types import Completion, Sampling

_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0
_TOO_LONG = "maximum context length"
"""What both vLLM and the embedded engine say of a prompt that does not fit."""
_JSON = {"Content-Type": "application/json"}
_ALREADY_LOADED = "already been loaded"

__all__ = ["InferenceClient", "version_name"]


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
    ) -> None:
        self.version = version
        self._url = base_url.rstrip("/")
        self._interrupts = on_new_version == "interrupt"
        self._recover_timeout = recover_timeout
        self._max_attempts = max_attempts
        self._running: set[Run] = set()
        self._moved = anyio.Event()
        self._lanes = Lanes(request_timeout)

    async def __aenter__(self) -> "InferenceClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lanes.aclose()

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
        run = Run(prompt, sampling, seed, frozenset(stop_token_ids), session)
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
        except RefusalError as e:
            if _ALREADY_LOADED not in e.message:
                raise EngineError(f"{self._url} did not load version {version} from {path}: {e.message}") from e

    async def unload_version(self, version: int) -> None:
        """Let the engine forget a version. One that it does not know is forgotten already.

        Raises:
            EngineError: the engine would not, or cannot be reached.
        """
        try:
            await self._post("/v1/unload_lora_adapter", {"lora_name": version_name(version)})
        except RefusalError as e:
            if e.status != 404:
                raise EngineError(f"{self._url} did not unload version {version}: {e.message}") from e

    async def probe(self, prompt: Sequence[int], sampling: Sampling, version: int) -> float:
        """The log-probability of the likeliest token after `prompt`: a number that other weights change.

        Raises:
            EngineError: the version does not answer.
        """
        run = Run(prompt, sampling, seed=0, stops=frozenset(), session="")
        run.version = version
        try:
            await self._attempt(run)
        except (RefusalError, httpx.HTTPError) as e:
            raise EngineError(f"{self._url} did not answer for version {version}: {_say(e)}") from e
        if not run.logprobs:
            raise EngineError(f"{self._url} answered for version {version} without a single token")
        return run.logprobs[0]

    async def _finish(self, run: Run) -> None:
        """Send a run as often as it takes to finish it."""
        failures, away_since = 0, None
        while not run.is_over():
            moved, before, error = self._moved, len(run.tokens), None
            try:
                with anyio.CancelScope() as run.scope:
                    await self._attempt(run)
            except (RefusalError, httpx.HTTPError) as e:
                error = e
            run.scope = None
            if run.is_over() or run.switched:
                failures, away_since = 0, None
                continue
            error = error or RefusalError(503, "the answer ended before its last token")
            self._raise_if_final(run, error)
            if len(run.tokens) > before:
                failures, away_since = 0, None
            failures += 1
            away_since = (away_since or time.monotonic()) if _is_away(error) else None
            if self._is_hopeless(failures, away_since):
                raise EngineError(
                    f"{self._url} did not complete a request under {version_name(run.version)} in {failures} attempts "
                    f"({len(run.tokens)} tokens had arrived); the last error: {_say(error)}"
                ) from error
            if _is_unknown_version(error) and run.version != self.version:
                run.version = self.version
                continue
            with anyio.move_on_after(min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(failures - 1, 10))):
                await moved.wait()

    def _is_hopeless(self, failures: int, away_since: float | None) -> bool:
        """An engine that is there gets some attempts, one that is not gets some time."""
        if away_since is None:
            return failures >= self._max_attempts
        return time.monotonic() - away_since > self._recover_timeout

    def _raise_if_final(self, run: Run, error: Exception) -> None:
        """Raise where trying again cannot help."""
        if not isinstance(error, RefusalError):
            return
        if error.status in (400, 413) and _TOO_LONG in error.message:
            raise PromptTooLongError(
                f"a prompt of {len(run.prompt)} tokens and up to {run.sampling.max_tokens} more do not fit the "
                f"engine's context: {error.message}"
            ) from error
        if 400 <= error.status < 500 and error.status not in (404, 408, 429):
            raise EngineError(f"{self._url} refused a request: {error.message}") from error

    async def _attempt(self, run: Run) -> None:
        """Send one request and take in what arrives."""
        headers = {**_JSON, "X-Session-ID": run.session} if run.session else _JSON
        url = f"{self._url}/v1/completions"
        run.switched = False
        # Kept here: the run's version may change before the last chunk of this request is taken in.
        version = run.version
        reader = EventReader()
        async with (
            self._lanes.lane() as http,
            http.stream("POST", url, content=run.body(), headers=headers) as response,
        ):
            if response.status_code != 200:
                raise error_of(response.status_code, await response.aread())
            async for data in response.aiter_raw():
                for chunk in reader.feed(data):
                    run.take(chunk, version)

    async def _post(self, path: str, body: dict[str, str]) -> None:
        try:
            async with self._lanes.lane() as http:
                response = await http.post(self._url + path, content=msgspec.json.encode(body), headers=_JSON)
        except httpx.HTTPError as e:
            raise EngineError(f"{self._url}{path}: {_say(e)}") from e
        if response.status_code != 200:
            raise error_of(response.status_code, response.content)


def _is_unknown_version(error: Exception) -> bool:
    return isinstance(error, RefusalError) and error.status == 404


def _is_away(error: Exception) -> bool:
    """Whether it is worth waiting for: nobody is there, or it is back and has not got the version yet."""
    away = httpx.NetworkError | httpx.RemoteProtocolError | httpx.ConnectTimeout
    return _is_unknown_version(error) or isinstance(error, away)


def _say(error: Exception) -> str:
    return error.message if isinstance(error, RefusalError) else f"{type(error).__name__}: {error}".rstrip(": ")
