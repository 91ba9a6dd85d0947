"""What is done to an engine, apart from sampling: versions loaded, forgotten and looked at."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import httpx
import msgspec
from msgspec import Struct

from moonmill.agents import wire
from moonmill.agents.lanes import Lanes
from moonmill.agents.pending import Run, version_name
from moonmill.agents.streams import RefusalError
from moonmill.errors import EngineError
from moonmill.types import Sampling

_ALREADY_LOADED = "already been loaded"
_SLEEP = "/sleep?level=1"
"""Weights go to the CPU's memory, and the cache is dropped."""


class ModelCard(Struct):
    """What an engine tells of a model it serves."""

    id: str
    max_model_len: int | None = None
    """Longest context in tokens."""
    root: str | None = None
    """The folder its weights were loaded from."""


class _Models(Struct):
    data: list[ModelCard]


class GoneError(EngineError):
    """Nobody is there, or is no more."""


class EngineControl:
    """The control of one engine. To be used as an async context.

    Args:
        base_url: the engine's root, such as `http://127.0.0.1:8000`.
        request_timeout: seconds without a byte from the engine before a request is given up.
    """

    def __init__(self, base_url: str, *, request_timeout: float = 120.0) -> None:
        self.base_url = base_url
        self._lanes = Lanes(request_timeout)

    async def __aenter__(self) -> "EngineControl":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lanes.aclose()

    async def load_version(self, version: int, path: Path) -> None:
        """Load a version's weights from a folder. One of that name that is there already is replaced.

        Raises:
            EngineError: the engine would not, or cannot be reached.
        """
        body = {"lora_name": version_name(version), "lora_path": str(path)}
        try:
            try:
                await self._post("/v1/load_lora_adapter", body)
            except RefusalError as e:
                if _ALREADY_LOADED not in e.message:
                    raise
                # Whatever it holds: another run may have left it there.
                await self.unload_version(version)
                await self._post("/v1/load_lora_adapter", body)
        except RefusalError as e:
            raise EngineError(f"{self.base_url} did not load version {version} from {path}: {e.message}") from e

    async def unload_version(self, version: int) -> None:
        """Forget a version. One that the engine does not know is forgotten already.

        Raises:
            EngineError: the engine would not, or cannot be reached.
        """
        try:
            await self._post("/v1/unload_lora_adapter", {"lora_name": version_name(version)})
        except RefusalError as e:
            if e.status != httpx.codes.NOT_FOUND:
                raise EngineError(f"{self.base_url} did not unload version {version}: {e.message}") from e

    async def probe(self, prompt: Sequence[int], version: int) -> float:
        """The log-probability of the likeliest token after `prompt`, at temperature 1: other weights change it.

        Raises:
            EngineError: the version does not answer.
        """
        # Greedy, log-probabilities are those of temperature 1: of the model itself.
        run = Run(prompt, Sampling(temperature=0.0, max_tokens=1), seed=0, stops=frozenset(), session="")
        run.version = version
        try:
            await wire.sample(self._lanes, self.base_url, run)
        except (RefusalError, httpx.HTTPError) as e:
            raise _error_of(e, f"{self.base_url} did not answer for version {version}: {wire.say(e)}") from e
        if not run.logprobs:
            raise EngineError(f"{self.base_url} answered for version {version} without a single token")
        return run.logprobs[0]

    async def sleep(self) -> None:
        """Have it give its memory free, with what is cached; requests under way end unfinished.

        Raises:
            EngineError: it would not, or cannot be reached.
        """
        try:
            await self._ask("POST", _SLEEP)
        except RefusalError as e:
            raise EngineError(f"{self.base_url} did not go to sleep: {e.message}") from e

    async def wake_up(self) -> None:
        """Have it serve again after `sleep`.

        Raises:
            EngineError: it would not, or cannot be reached.
        """
        try:
            await self._ask("POST", "/wake_up")
        except RefusalError as e:
            raise EngineError(f"{self.base_url} did not wake up: {e.message}") from e

    async def models(self) -> list[ModelCard]:
        """What the engine serves.

        Raises:
            EngineError: it does not tell, or cannot be reached.
        """
        try:
            return msgspec.json.decode(await self._ask("GET", "/v1/models"), type=_Models).data
        except (RefusalError, msgspec.MsgspecError) as e:
            raise EngineError(f"{self.base_url}/v1/models: {e}") from e

    async def ailment(self, seconds: float) -> str:
        """Why the engine is not well; empty where it answers `/health` within so many seconds."""
        with anyio.move_on_after(seconds):
            try:
                await self._ask("GET", "/health")
            except (RefusalError, EngineError) as e:
                return str(e)
            return ""
        return f"{self.base_url}/health: no answer in {seconds:g} s"

    async def _post(self, path: str, body: dict[str, str]) -> None:
        await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> bytes:
        try:
            return await wire.ask(self._lanes, method, self.base_url + path, body)
        except httpx.HTTPError as e:
            raise _error_of(e, f"{self.base_url}{path}: {wire.say(e)}") from e


def _error_of(error: Exception, text: str) -> EngineError:
    return GoneError(text) if wire.is_out_of_reach(error) else EngineError(text)
