"""The controller's way to the learner."""

from pathlib import Path
from typing import TypeVar

import httpx
import msgspec
from msgspec import Struct

from moonmill.errors import RunError, WorkerDiedError
from moonmill.trainer import messages
from moonmill.types import Rollout

T = TypeVar("T", bound=Struct)


class LearnerClient:
    """Talks to one learner process.

    Args:
        base_url: where it serves.
        timeout: seconds one request may take, a whole learner step among them.
    """

    def __init__(self, base_url: str, *, timeout: float) -> None:
        self._timeout = timeout
        self._http = httpx.AsyncClient(base_url=base_url, timeout=timeout)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def state(self) -> messages.State:
        return await self._call("GET", "/state", None, messages.State)

    async def step(self, step: int, rollouts: tuple[Rollout, ...]) -> messages.StepAnswer:
        """Do step number `step`.

        Raises:
            WorkerDiedError: the learner is gone or does not answer.
            RunError: it refused, or the step failed.
        """
        return await self._call("POST", "/step", messages.StepRequest(step, rollouts), messages.StepAnswer)

    async def checkpoint(self) -> Path:
        return Path((await self._call("POST", "/checkpoint", None, messages.Path)).path)

    async def restore(self, path: Path) -> messages.State:
        return await self._call("POST", "/restore", messages.Path(str(path)), messages.State)

    async def _call(self, method: str, path: str, body: Struct | None, answer: type[T]) -> T:
        content = b"" if body is None else msgspec.msgpack.encode(body)
        try:
            response = await self._http.request(method, path, content=content)
        except httpx.TimeoutException as e:
            raise WorkerDiedError(f"the learner did not answer {path} within {self._timeout:g} s") from e
        except httpx.TransportError as e:
            raise WorkerDiedError(f"the learner is gone ({type(e).__name__} at {path})") from e
        if response.status_code != httpx.codes.OK:
            raise RunError(f"the learner failed at {path}: {_reason(response)}")
        return msgspec.msgpack.decode(response.content, type=answer)


def _reason(response: httpx.Response) -> str:
    try:
        failure = msgspec.msgpack.decode(response.content, type=messages.Failure)
    except msgspec.MsgspecError:
        return f"status {response.status_code}: {response.text[:500]}"
    return f"{failure.kind}: {failure.error}"
