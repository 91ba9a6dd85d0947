"""Questions that take their time, asked at once and for so long only; and other programs, asked for JSON.

What always holds: nothing that is asked here raises, blocks for longer than it may, or changes anything.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar

from moonmill.blame import text_of
from moonmill.installing import without_ours
from moonmill.trainer.doctor.facts import Unknown

T = TypeVar("T")


def ask_at_once(questions: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Any]:
    """Call all of them, each on a thread of its own.

    Args:
        questions: by name.
        seconds: how long all may take together. What has no answer by then is left behind.

    Returns:
        Their answers by name; `Unknown` in the place of one that failed or took too long.
    """
    answers: dict[str, Any] = {}

    def ask(name: str, question: Callable[[], Any]) -> None:
        try:
            answers[name] = question()
        except BaseException as e:  # whatever a driver, a daemon or a broken package raises
            reason = f"{type(e).__name__}: {text_of(e)}".removesuffix(": ")
            answers[name] = Unknown(reason, late=isinstance(e, TimeoutError))

    threads = [threading.Thread(target=ask, args=item, daemon=True, name=item[0]) for item in questions.items()]
    for thread in threads:
        thread.start()
    end = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))
    late = Unknown(f"no answer in {seconds:g} s", late=True)
    return {name: answers.get(name, late) for name in questions}


def said_by(argv: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> str | Unknown:
    """What a program prints; `Unknown` where it cannot be run, fails, or takes longer than `seconds`."""
    try:
        told = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=seconds, env=environ, check=False
        )
    except subprocess.TimeoutExpired as e:
        before = e.stdout.decode(errors="replace") if isinstance(e.stdout, bytes) else ""  # bytes, even of text
        return Unknown(f"no answer in {seconds:.2g} s", late=True, said=before)
    except OSError as e:
        return Unknown(f"{argv[0]} cannot be run: {e.strerror or e}")
    if told.returncode:
        last = (f"{told.stdout}\n{told.stderr}".strip().splitlines() or ["it said nothing"])[-1]
        reason = last if told.returncode > 0 else f"it was ended by signal {-told.returncode}: {last}"
        return Unknown(reason, said=told.stdout)
    return told.stdout


def python_said(python: str, code: str, seconds: float, *arguments: str) -> str | Unknown:
    """What a program in Python prints, by an interpreter that need not be ours, with packages of its own."""
    ours = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    return said_by([python, "-P", "-c", code, *arguments], seconds, without_ours(os.environ) | ours)
