"""The program that plays episodes of one environment of verifiers, many at once.

A line on stdin is a request, `{"n": 7, "do": "play", …}`; a line on stdout its answer, `{"n": 7, "result": …}` or
`{"n": 7, "error": "…"}`. The first line says which environment, and has no answer. `{"do": "cancel", "n": 7}` ends a
request, which then has none either. When stdin ends, by our end or our parent's, so does everything that runs here.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

_GRACE_SECONDS = 5.0
"""What is cancelled at the end may take so long to end its own processes."""

_EVAL_EVERY = 5
_FIRST_IS_GONE = (
    ". Where it is written for the first API of verifiers (load_environment), which this version has no more, add it "
    "with --version 0.3.1"
)


class Unfit(Exception):  # noqa: N818 - its text is all that is told
    """Something that is told as it is, without a class or a place."""


class World(Protocol):
    """An environment of theirs."""

    api: str
    """`v1` or `v0`."""
    about: str | None
    """What its own class says of it; without that, its module's docstring is taken."""

    async def open(self) -> None:
        """Start what all episodes share."""
        ...

    async def close(self) -> None: ...

    def rows(self, split: str, start: int, count: int) -> dict[str, Any]:
        """Tasks of a split, from their number `start` among all on, and the number to go on from; null at the end."""
        ...

    async def play(self, task: dict[str, Any], model: dict[str, str]) -> dict[str, Any]:
        """Play an episode; returns what it came to."""
        ...


def load(id: str, args: dict[str, Any]) -> World:
    """The environment that verifiers knows as `id`.

    Raises:
        Unfit: there is none, or it cannot be had.
    """
    try:
        module = _module_of(id)
        # A package for the second API has imported it; that takes seconds, which one for the first need not wait for.
        if "verifiers.v1" in sys.modules:
            from . import v1

            if v1.has_taskset(module):
                return v1.V1(id, args)
        if not hasattr(module, "load_environment"):
            raise Unfit(f"{module.__name__} exports no Taskset in its `__all__`, and has no load_environment")
        from . import v0

        return v0.V0(id, args)
    except Unfit:
        raise
    except Exception as e:
        misses = isinstance(e, (ImportError, AttributeError)) and not importlib.util.find_spec("verifiers.legacy")
        gone = _FIRST_IS_GONE if misses else ""
        raise Unfit(f"it cannot be loaded: {said_of(e)}{gone}") from e


def is_of(split: str, index: int, *, alone: bool) -> bool:
    """Whether a task of their only split is of one of ours: every fifth is for `eval`, the others are for `train`, a
    split of any other name has them all, and a task that is alone is of every split."""
    return alone or split not in ("train", "eval") or (split == "eval") == (index % _EVAL_EVERY == 0)


def said_of(error: BaseException) -> str:
    """Class and text of an error, and where it was raised."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place, trace = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})", trace.tb_next
    # pydantic adds the address of a page to each thing that is wrong.
    said = "\n".join(x for x in str(error).splitlines() if not x.lstrip().startswith("For further information visit"))
    return f"{type(error).__name__}: {said}".removesuffix(": ") + place


class Player:
    """An environment that is loaded when it is first asked for something."""

    def __init__(self, id: str, args: dict[str, Any]) -> None:
        self._id, self._args = id, args
        self._opening: asyncio.Task[World] | None = None

    async def do(self, request: dict[str, Any]) -> Any:
        """Answer a request."""
        self._opening = self._opening or asyncio.create_task(self._open())
        world = await asyncio.shield(self._opening)
        match request["do"]:
            case "look":
                about = inspect.cleandoc(world.about or _module_of(self._id).__doc__ or "")
                return {"api": world.api, "version": _version(), "about": about}
            case "rows":
                return world.rows(request["split"], request["start"], request["count"])
            case "play":
                return await world.play(request["task"], request["model"])
        raise Unfit(f"there is no request {request['do']!r}")

    async def close(self) -> None:
        """End what all episodes share."""
        if self._opening is not None and self._opening.done() and not self._opening.exception():
            await self._opening.result().close()

    async def _open(self) -> World:
        world = load(self._id, self._args)
        await world.open()
        return world


class _Server:
    def __init__(self, answer: Callable[[bytes], object]) -> None:
        self._answer = answer
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            for line in sys.stdin.buffer:
                loop.call_soon_threadsafe(self._lines.put_nowait, line)
            threading.Timer(_GRACE_SECONDS, os._exit, (0,)).start()
            loop.call_soon_threadsafe(self._lines.put_nowait, b"")

        threading.Thread(target=read, daemon=True).start()
        first = json.loads(await self._lines.get() or b"null")
        player = Player(first["id"], first["args"])
        while line := await self._lines.get():
            request = json.loads(line)
            if request["do"] == "cancel":
                if (task := self._tasks.get(request["n"])) is not None:
                    task.cancel()
            else:
                self._tasks[request["n"]] = asyncio.create_task(self._serve(player, request))
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await player.close()
        os._exit(0)  # Threads of tools that still run are not waited for.

    async def _serve(self, player: Player, request: dict[str, Any]) -> None:
        number = request["n"]
        try:
            answer = {"n": number, "result": await player.do(request)}
            line = json.dumps(answer)
        except Unfit as e:
            line = json.dumps({"n": number, "error": str(e)})
        except Exception as e:
            line = json.dumps({"n": number, "error": said_of(e)})
        finally:
            del self._tasks[number]
        self._answer(line.encode() + b"\n")


def serve() -> None:
    """Serve requests until stdin ends."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # What an environment prints is no answer.
    asyncio.run(_Server(out.write).run())


def _module_of(id: str) -> Any:
    """The module that verifiers would take for `id`: one of its own, or a package's."""
    import verifiers

    name = id.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()
    if any(os.path.isdir(os.path.join(folder, "v1", "tasksets", name)) for folder in verifiers.__path__):
        name = f"verifiers.v1.tasksets.{name}"
    return importlib.import_module(name)


def _version() -> str:
    import verifiers

    return str(verifiers.__version__)
