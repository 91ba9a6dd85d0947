"""How a command ended, in words for the model."""

import signal
from contextlib import suppress

from moonmill.envs.returned import shortened
from moonmill.sandboxes import ExecResult

OUTPUT_CHARS = 10_000
"""Characters of stdout, and of stderr, that the model is shown: of more, the beginning and the end."""
_SIGNALS = 128


def told_result(done: ExecResult) -> str:
    """What it has written, and its exit status where that is not 0."""
    return told_output(done.stdout, done.stderr, done.truncated, _end_of(done))


def told_output(stdout: str, stderr: str, truncated: bool, end: str) -> str:
    """What it has written, and `end`, a line about how it ended; empty for none."""
    parts = [shortened(stdout, OUTPUT_CHARS)]
    if stderr:
        parts += ["[stderr]", shortened(stderr, OUTPUT_CHARS)]
    if truncated:
        parts.append("[it wrote more than is kept; the rest is lost]")
    text = "\n".join(part.removesuffix("\n") for part in (*parts, end) if part)
    return text or "[no output]"


def _end_of(done: ExecResult) -> str:
    if done.returncode == 0:
        return ""
    end = f"exit code {done.returncode}"
    if done.returncode > _SIGNALS:
        with suppress(ValueError):
            end += f", which is {signal.Signals(done.returncode - _SIGNALS).name}"
    if done.oom_killed:
        end += ": out of memory"
    return f"[{end}]"
