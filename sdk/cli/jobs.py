"""Training runs as processes of their own, one after another, with our signals passed on.

A run in a process of its own begins as `moonmill train` does: what an environment left in a module, or memory that was
not given back, is no part of the next. It ends with us, also where we are killed: the kernel then asks it to stop, as
Ctrl-C does.
"""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from moonmill.signals import STOPPING

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Runs:
    """Runs jobs until it is asked to stop."""

    def __init__(self) -> None:
        self.stop_asked = False
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def receiving_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM go to the run that is going on, each once, and no further one is begun."""
        before = {number: signal.signal(number, self._pass_on) for number in STOPPING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def train(self, config: Path, *, resume: bool) -> int:
        """Train as a config file says; its progress goes to our stderr. Returns the exit code."""
        argv = [sys.executable, "-P", "-m", "moonmill", "train", str(config), "--of-comparison"]
        argv += ["--resume"] if resume else []
        # In a process group of its own it gets no signal from the terminal, but through us.
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0, preexec_fn=_end_with_parent
        ) as self._process:
            if self.stop_asked:  # just before there was somebody to tell
                self._process.send_signal(signal.SIGINT)
            return self._process.wait()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.stop_asked = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
