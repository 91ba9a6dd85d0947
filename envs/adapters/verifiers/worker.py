"""Who plays the episodes: a process beside verifiers, in its own Python environment, or, where ours has verifiers, a
thread of this process.

What always holds: what was asked is answered once, with an error where the process has ended; it is started again when
something is asked of it afterwards; it does not outlive us, even where we are killed, because it watches the stdin we
hold, nor stay for long when nothing is asked of it.
"""

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from moonmill.envs.elsewhere import Begin, CallOff, Deliver
from moonmill.envs.loop import Answer
from moonmill.errors import EnvCodeError
from moonmill.installing import without_ours

_IDLE_SECONDS = 300.0
"""A process that nothing is asked of for so long is ended: it takes hundreds of megabytes, and seconds to start."""
_INSIDE = Path(__file__).parent / "inside"
_START = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("moonmill_inside", sys.argv[1], submodule_search_locations=[sys.argv[2]])
sys.modules["moonmill_inside"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from moonmill_inside.main import serve
serve()
"""


class WorkerEndedError(EnvCodeError):
    """The process ended before it had answered."""


class Worker(Protocol):
    """Answers requests, many at once; `inside.main` says which there are."""

    def asking(self, request: Mapping[str, Any]) -> Begin:
        """A request to wait for, as in `envs.elsewhere`."""
        ...


class ProcessWorker:
    """A process of verifiers' own Python environment. It is started when it is first asked for something.

    Args:
        python: the interpreter.
        id: the environment, as verifiers knows it.
        args: its arguments.
    """

    def __init__(self, python: str, id: str, args: Mapping[str, Any]) -> None:
        self._id = id
        self._argv = [python, "-P", "-c", _START, str(_INSIDE / "__init__.py"), str(_INSIDE)]
        self._first = {"id": id, "args": args}
        self._lock = threading.Lock()
        self._life: _Life | None = None
        self._idle = threading.Timer(0, lambda: None)

    @property
    def pid(self) -> int | None:
        """Of the process, while it runs."""
        life = self._life
        return life.process.pid if life is not None else None

    def asking(self, request: Mapping[str, Any]) -> Begin:
        def begin(deliver: Deliver) -> CallOff:
            with self._lock:
                self._idle.cancel()
                if self._life is None:
                    self._life = self._start()
                return self._life.ask(request, deliver)

        return begin

    def _start(self) -> "_Life":
        try:
            # A session of its own: Ctrl-C at our terminal is ours to act on.
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=without_ours(os.environ),
                start_new_session=True,
            )
        except OSError as e:
            raise EnvCodeError(
                f"verifiers:{self._id} cannot be started: {self._argv[0]}: {e.strerror}; add it again with `moonmill "
                f"envs add verifiers:{self._id}`"
            ) from e
        life = _Life(process, self._id, self._rest, self._ended)
        life.tell(self._first)
        return life

    def _rest(self, life: "_Life") -> None:
        """Nothing is asked of it any more."""
        with self._lock:
            if self._life is life and not life.waiting:
                self._idle.cancel()
                self._idle = threading.Timer(_IDLE_SECONDS, self._let_go, [life])
                self._idle.daemon = True
                self._idle.start()

    def _let_go(self, life: "_Life") -> None:
        with self._lock:
            if self._life is life and not life.waiting:
                self._life = None
                life.tell(None)

    def _ended(self, life: "_Life") -> None:
        with self._lock:
            if self._life is life:
                self._life = None


class _Life:
    """One process, from its start to its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", id: str, rest: Any, ended: Any) -> None:
        self.process = process
        self.waiting: dict[int, Deliver] = {}
        self._id, self._rest, self._ended = id, rest, ended
        self._numbers = 0
        self._lines: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        for work in (self._write, self._read):
            threading.Thread(target=work, name="moonmill-verifiers", daemon=True).start()

    def ask(self, request: Mapping[str, Any], deliver: Deliver) -> CallOff:
        """Send a request; its answer goes to `deliver`."""
        self._numbers += 1
        number = self._numbers
        self.waiting[number] = deliver
        self.tell({**request, "n": number})

        def call_off() -> None:
            if self.waiting.pop(number, None) is not None:
                self.tell({"do": "cancel", "n": number})
                deliver(Answer(error=EnvCodeError("called off")))
                self._rest(self)

        return call_off

    def tell(self, line: Mapping[str, Any] | None) -> None:
        """Send something that has no answer; None ends the process. Never blocks."""
        self._lines.put(line)

    def _write(self) -> None:
        assert self.process.stdin is not None
        try:
            with self.process.stdin as pipe:
                while (line := self._lines.get()) is not None:
                    pipe.write(json.dumps(line).encode() + b"\n")
                    pipe.flush()
        except OSError:
            return  # It has ended, which the other thread sees as well.

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                try:
                    answer = json.loads(line)
                except ValueError:  # It is out of step: none of its answers can be trusted any more.
                    self.process.kill()
                    break
                deliver = self.waiting.pop(answer["n"], None)
                if deliver is not None:
                    deliver(_answer(self._id, answer))
                    self._rest(self)
        status = self.process.wait()
        self._ended(self)
        self._lines.put(None)
        how = f"was ended by signal {-status}" if status < 0 else f"ended with {status}"
        while self.waiting:
            _, deliver = self.waiting.popitem()
            deliver(Answer(error=WorkerEndedError(f"verifiers:{self._id}: the process that plays it {how}")))


class HostWorker:
    """A thread of this process, with an event loop of its own: for where verifiers is installed beside Moonmill.

    Args:
        id: the environment, as verifiers knows it.
        args: its arguments.
    """

    def __init__(self, id: str, args: Mapping[str, Any]) -> None:
        from moonmill.envs.adapters.verifiers.inside.main import Player

        self._id = id
        self._player = Player(id, dict(args))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="moonmill-verifiers", daemon=True).start()

    def asking(self, request: Mapping[str, Any]) -> Begin:
        from moonmill.envs.adapters.verifiers.inside.main import Unfit, said_of

        async def do() -> Answer:
            try:
                return Answer(await self._player.do(dict(request)))
            except Exception as e:
                return _answer(self._id, {"error": str(e) if isinstance(e, Unfit) else said_of(e)})

        def begin(deliver: Deliver) -> CallOff:
            asked = asyncio.run_coroutine_threadsafe(do(), self._loop)

            def done(_: Any) -> None:
                cancelled = asked.cancelled()
                deliver(Answer(error=EnvCodeError("called off")) if cancelled else asked.result())

            def call_off() -> None:
                asked.cancel()

            asked.add_done_callback(done)
            return call_off

        return begin


def _answer(id: str, answer: Mapping[str, Any]) -> Answer:
    if "error" in answer:
        return Answer(error=EnvCodeError(f"verifiers:{id}: {answer['error']}"))
    return Answer(answer["result"])
