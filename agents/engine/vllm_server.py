"""vLLM's server as a child: started, read, and ended with all its processes.

What always holds: its output is passed on line by line as it comes; ending it ends every process it started.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import IO

from moonmill.agents.engine.vllm_command import VllmOptions, server_argv, server_environ
from moonmill.agents.engine.vllm_log import phase_of

_KEPT_LINES = 4000
"""Of its output, for telling why it ended."""
_KEPT_ERRORS = 500
_APART_SECONDS = 60.0
"""Errors that are further apart have nothing to do with each other."""
_TERMINATE_SECONDS = 2.5
"""From SIGTERM to SIGKILL. It needs about one, and those who end us wait five for all of this."""
_FOLLOW_SECONDS = 1.5
"""For processes to follow their parent, and for Python's resource tracker to remove the shared memory of the killed."""
_POLL_SECONDS = 0.02
_ENDING = (signal.SIGTERM, signal.SIGINT)
_LINE_END = re.compile(rb"[\r\n]+")
_CHUNK = 1 << 16


class VllmServer:
    """vLLM's server, started on entering the context and ended on leaving it; must be entered in the main thread.

    Args:
        options: what to serve.
        out: where its output goes.
    """

    def __init__(self, options: VllmOptions, out: IO[bytes]) -> None:
        self.options = options
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        """The end of its output."""
        self._errors: list[str] = []
        self._last_error = 0.0
        self.phase = "starting"
        """What it does before it serves, in a few words."""
        self._out = out
        self._started = time.monotonic()
        self._process: subprocess.Popen[bytes]
        self._reader = threading.Thread(target=self._read, name="vllm-output", daemon=True)

    def __enter__(self) -> "VllmServer":
        self._started = time.monotonic()
        came: list[int] = []
        # Signals wait meanwhile: an exception out of a handler would leave behind a server that nobody knows of.
        handlers = [signal.signal(number, lambda got, _: came.append(got)) for number in _ENDING]
        self._start()
        try:
            for number, handler in zip(_ENDING, handlers, strict=True):
                signal.signal(number, handler)
            for got in came:
                signal.raise_signal(got)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    @property
    def story(self) -> list[str]:
        """The end of its output, and before it what the trouble began with, since thousands of errors may follow."""
        recent = time.monotonic() - self._last_error < _APART_SECONDS
        return [*(self._errors if recent else ()), *self.lines.copy()]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self._started

    def kill(self) -> None:
        """End all of it at once, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        # The kernel ends the others now. What is left of the group after that is not one of vLLM's workers.
        if not self._group_gone(_FOLLOW_SECONDS):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._group_gone(_FOLLOW_SECONDS)
        self._reader.join(_FOLLOW_SECONDS)

    def _start(self) -> None:
        # A session of its own, so that a signal to the group reaches all of vLLM and nothing else. It asks the kernel
        # itself to be ended with this thread.
        self._process = subprocess.Popen(
            server_argv(self.options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=server_environ(self.options, os.environ, os.getpid()),
            start_new_session=True,
        )
        self._reader.start()

    def _end(self) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # we are ending already
        if self.running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TERMINATE_SECONDS)
        self.kill()

    def _group_gone(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                os.killpg(self._process.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        rest = b""
        while chunk := os.read(pipe.fileno(), _CHUNK):
            *lines, rest = _LINE_END.split(rest + chunk)
            for line in lines:
                self._take(line)
        self._take(rest)

    def _take(self, line: bytes) -> None:
        if not line:
            return
        text = line.decode(errors="replace")
        self.lines.append(text)
        if "ERROR" in text:
            now = time.monotonic()
            if now - self._last_error > _APART_SECONDS:
                self._errors = []
            self._last_error = now
            if len(self._errors) < _KEPT_ERRORS:
                self._errors.append(text)
        self.phase = phase_of(text) or self.phase
        with suppress(OSError):  # a full disk ends no server
            self._out.write(line + b"\n")
            self._out.flush()
