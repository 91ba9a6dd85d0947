"""How an engine comes to be there, and how one went that is not."""

import math
from collections.abc import Callable

import anyio

from moonmill.agents.control import EngineControl
from moonmill.agents.processes import ServerProcess
from moonmill.errors import WorkerDiedError

_LOOK_SECONDS = 1.0
_HEALTH_SECONDS = 3.0
"""As long as one look may take."""
_SAY_SECONDS = 20.0
"""Between two lines that say that an attached engine does not answer yet."""


async def await_answer(control: EngineControl, longest: float, note: Callable[..., None]) -> None:
    """Wait for an engine that is not ours, for as long as one of ours might take.

    Raises:
        WorkerDiedError: it does not answer in `longest` seconds.
    """
    begin, told = anyio.current_time(), -math.inf
    while ailment := await control.ailment(_HEALTH_SECONDS):
        waited = anyio.current_time() - begin
        if waited > longest:
            raise WorkerDiedError(f"engine.urls: no engine was at {control.base_url} for {longest:g} s: {ailment}")
        if waited - told > _SAY_SECONDS:
            told = waited
            note("engine_starting", text=f"waiting for an engine, {waited:.0f} s of {longest:g}: {ailment}")
        await anyio.sleep(_LOOK_SECONDS)


def how_it_ended(server: ServerProcess) -> dict[str, object]:
    """Of one that has ended by itself, with the last line it said."""
    code = server.returncode
    said = server.last_words().rpartition("\n")[2] if code is not None and code > 0 else ""
    return {"returncode": code, **({"error": f"{said:.400} ({server.log_path})"} if said else {})}
