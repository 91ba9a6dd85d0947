"""The way to the learner process: one method for each of its requests.

Every wait is bounded by `timeout`. A learner that is gone or hangs is a `WorkerDiedError`, one that refuses or fails is
a `RunError` with its own words.
"""

from pathlib import Path
from typing import TypeVar

import httpx
import msgspec
from msgspec import Struct

from moonmill.errors import RunError, WorkerDiedError
from moonmill.trainer.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    ErrorAnswer,
    FallBackRequest,
    LearnerState,
    ProbeAnswer,
    ProbeRequest,
    RestoreRequest,
    StepAnswer,
    StepRequest,
)
from moonmill.types import Rollout

_Answer = TypeVar("_Answer", bound=Struct)
_CONNECT_SECONDS = 10.0


class LearnerClient:
    """Talks to one learner. `aclose` it at the end.

    Args:
        base_url: the learner's root, such as `http://127.0.0.1:8001`.
        timeout: seconds one request may take, a whole learner step among them.
    """

    def __init__(self, base_url: str, timeout: float) -> None:
        self._url = base_url.rstrip("/")
        self._timeout = timeout
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=_CONNECT_SECONDS), trust_env=False)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def state(self) -> LearnerState:
        """Where the learner stands."""
        return await self._ask("GET", "/state", None, LearnerState)

    async def step(self, step: int, rollouts: tuple[Rollout, ...], probe: tuple[int, ...] = ()) -> StepAnswer:
        """Do learner step number `step`, the one after those done, with these rollouts.

        Where that makes a version, the answer tells the log-probability of its likeliest token after `probe`.
        """
        return await self._ask("POST", "/step", StepRequest(step, rollouts, probe), StepAnswer)

    async def probe(self, tokens: tuple[int, ...]) -> float:
        """The log-probability of the likeliest token after these, with the weights there are."""
        return (await self._ask("POST", "/probe", ProbeRequest(tokens), ProbeAnswer)).logprob

    async def fall_back(self, step: int, version: int, lr_scale: float, probe: tuple[int, ...] = ()) -> StepAnswer:
        """Count the state there is as this step and version, with learning rates scaled from here on."""
        return await self._ask("POST", "/fall_back", FallBackRequest(step, version, lr_scale, probe), StepAnswer)

    async def checkpoint(self, back_to: int | None = None) -> Path:
        """Save everything the learner knows; returns the checkpoint's folder.

        Checkpoints of later steps than `back_to` are kept, and the newest before them.
        """
        return Path((await self._ask("POST", "/checkpoint", CheckpointRequest(back_to), CheckpointAnswer)).path)

    async def restore(self, path: Path) -> LearnerState:
        """Go back to a checkpoint."""
        return await self._ask("POST", "/restore", RestoreRequest(str(path)), LearnerState)

    async def _ask(self, method: str, path: str, body: Struct | None, answer: type[_Answer]) -> _Answer:
        content = None if body is None else msgspec.msgpack.encode(body)
        try:
            response = await self._http.request(method, self._url + path, content=content)
        except httpx.TimeoutException as e:
            raise WorkerDiedError(f"the learner at {self._url} did not answer {path} in {self._timeout:g} s") from e
        except httpx.TransportError as e:
            raise WorkerDiedError(f"the learner at {self._url} cannot be reached for {path}: {_reason(e)}") from e
        if response.status_code != httpx.codes.OK:
            raise RunError(_told(path, response))
        return msgspec.msgpack.decode(response.content, type=answer)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _told(path: str, response: httpx.Response) -> str:
    try:
        told = msgspec.json.decode(response.content, type=ErrorAnswer)
    except msgspec.MsgspecError:
        return f"the learner failed at {path}: status {response.status_code}: {response.text[:500]}"
    if told.kind == "InternalError":
        return f"the learner failed at {path}: {told.error} (its log tells more)"
    return f"the learner: {told.error}"
