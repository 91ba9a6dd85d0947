"""Single requests to an engine, without any retry, and what can go wrong with them in words."""

from collections.abc import Callable

import httpx
import msgspec

from moonmill.agents.lanes import Lanes
from moonmill.agents.pending import Run
from moonmill.agents.streams import EventReader, RefusalError, error_of

_JSON = {"Content-Type": "application/json"}
_ASLEEP = "the engine is asleep"
"""What the embedded engine says; vLLM has requests wait."""


def _nothing() -> None:
    pass


async def sample(
    lanes: Lanes, url: str, run: Run, answered: Callable[[], None] = _nothing, arrived: Callable[[], None] = _nothing
) -> None:
    """Ask for what a run still lacks, and take in what comes.

    `answered` is called when an answer begins, `arrived` with everything that comes of it.

    Raises:
        RefusalError: the engine answered with an error.
        httpx.HTTPError: it did not answer.
    """
    headers = {**_JSON, "X-Session-ID": run.session} if run.session else _JSON
    # Kept here: the run's version may change before the last chunk of this request is taken in.
    version = run.version
    reader = EventReader()
    async with (
        lanes.lane() as http,
        http.stream("POST", f"{url}/v1/completions", content=run.body(), headers=headers) as response,
    ):
        answered()
        if response.status_code != httpx.codes.OK:
            raise error_of(response.status_code, await response.aread())
        async for data in response.aiter_raw():
            for chunk in reader.feed(data):
                run.take(chunk, version)
            arrived()


async def ask(lanes: Lanes, method: str, url: str, body: dict[str, str] | None = None) -> bytes:
    """The body of an answer.

    Raises:
        RefusalError: the engine answered with an error.
        httpx.HTTPError: it did not answer.
    """
    content = None if body is None else msgspec.json.encode(body)
    async with lanes.lane() as http:
        response = await http.request(method, url, content=content, headers=_JSON)
    if response.status_code != httpx.codes.OK:
        raise error_of(response.status_code, response.content)
    return response.content


def is_unknown_version(error: Exception) -> bool:
    """Whether the engine has not got the version that was asked for."""
    return isinstance(error, RefusalError) and error.status == httpx.codes.NOT_FOUND


def is_asleep(error: Exception) -> bool:
    """Whether the engine has given its memory free, and will answer once it is woken."""
    return (
        isinstance(error, RefusalError) and error.status == httpx.codes.SERVICE_UNAVAILABLE and _ASLEEP in error.message
    )


def is_out_of_reach(error: Exception) -> bool:
    """Whether nobody is there. One that is slow to answer may only be busy."""
    return isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | httpx.ConnectTimeout)


def is_away(error: Exception) -> bool:
    """Whether it is worth waiting for: nobody is there, it is back and has not got the version yet, or it sleeps."""
    return is_unknown_version(error) or is_out_of_reach(error) or is_asleep(error)


def say(error: Exception) -> str:
    """An error in one line."""
    return error.message if isinstance(error, RefusalError) else f"{type(error).__name__}: {error}".rstrip(": ")
