"""Grades a submission, which may be hostile, in sandboxes of its own.

What always holds:

- No answer is ever in the sandbox that a submission runs in: it is given arguments and gives back results, as lines of
  plain data. A line counts if it is the very one that is wanted, so nothing a submission does to the program that calls
  it, to Python or to its sandbox makes it pass, but to put out the right results.
- Where results are judged by checks, a function of asserts, those run in another sandbox, on the results alone.
- On our side nothing of a submission is run or decoded, and what is read of it has a bound.
"""

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from moonmill.envs.library.coding import inside
from moonmill.errors import ConfigError, EnvCodeError
from moonmill.sandboxes import ExecError, ExecResult, ExecTimeoutError, SandboxUnavailableError

SECONDS = 10
"""Processor time of a submission over all its calls, and of checks."""
CALL_SECONDS = 3.0
"""Processor time of one call."""
WALL_SECONDS = 60.0
"""By the clock. Much more, because a busy host must not decide; it ends what sleeps."""
OUTPUT_LIMIT = 4 << 20
"""Bytes of results that are read."""
OpenSandbox = Callable[[], AbstractContextManager[Any]]
_PROGRAM = Path(inside.__file__).read_text(encoding="utf-8")


class CallTests(Struct, frozen=True, tag="calls", tag_field="kind"):
    """Tests that want a result for each call."""

    entry_point: str
    calls: tuple[str, ...]
    """Positional and keyword arguments, as `encode` writes them."""
    wanted: tuple[str, ...]
    """The results, encoded so that what is equal is written in the same way."""
    solution: str
    """One that passes."""


class CheckTests(Struct, frozen=True, tag="checks", tag_field="kind"):
    """Tests that are a function `check(candidate)` of asserts."""

    entry_point: str
    preamble: str
    """Code in front of both a submission and the checks: imports, and functions that the problem gives."""
    checks: str
    solution: str
    """One that passes, to find out what the checks call."""


Tests = CallTests | CheckTests


class Grade(Struct, frozen=True):
    """How many of its tests a submission has passed."""

    passed: int
    total: int
    problem: str | None = None
    """The first thing that was wrong."""

    @property
    def share(self) -> float:
        return self.passed / self.total

    @property
    def is_solved(self) -> bool:
        return self.passed == self.total


class Grader:
    """Grades submissions.

    Args:
        open_sandbox: gives a fresh sandbox, as `MultiTurnEnv.open_sandbox` does.
        paths: files with answers on this machine: a sandbox that shows one of them is refused.
        modules: Python packages with answers, likewise.
    """

    _references: dict[CheckTests, "_Reference"] = {}
    """What has been found out about checks, for all of the process."""

    def __init__(self, open_sandbox: OpenSandbox, paths: Sequence[str], modules: Sequence[str]) -> None:
        self._open_sandbox = open_sandbox
        self._hidden = {"paths": paths, "modules": modules}

    def grade(self, tests: Tests, code: str) -> Grade:
        """How many of the tests `code` passes.

        Raises:
            SandboxUnavailableError: there is no sandbox to be had.
            ConfigError: the sandbox is not fit for grading.
            EnvCodeError: the checks are wrong, or could not be begun.
        """
        if isinstance(tests, CallTests):
            return self._grade_by_results(tests, code)
        return self._grade_by_checks(tests, code)

    def _grade_by_results(self, tests: CallTests, code: str) -> Grade:
        lines, end = self._outputs(tests, "", code, tests.calls, as_equal=True)
        passed = sum(line == "=" + wanted for line, wanted in zip(lines, tests.wanted, strict=False))
        problem = None
        if passed < len(tests.wanted):
            wrong = (line for line, wanted in zip(lines, tests.wanted, strict=False) if line != "=" + wanted)
            problem = _in_words(next(wrong, None), end)
        return Grade(passed, len(tests.wanted), problem)

    def _grade_by_checks(self, tests: CheckTests, code: str) -> Grade:
        reference = self._reference(tests)
        lines, end = self._outputs(tests, tests.preamble, code, reference.calls, as_equal=False)
        answers = dict(zip(reference.calls, lines, strict=False))
        output, _ = self._run("verdict", {**_checks_of(tests), "answers": answers})
        if not output:  # Too much for the checks, in time or memory.
            return Grade(0, reference.passed, "its results are more than the checks can take")
        verdict = msgspec.json.decode(output[0], type=_Verdict)
        holds = verdict.error is None and verdict.failed == 0
        passed = min(verdict.passed, reference.passed if holds else reference.passed - 1)
        problem = None if holds else next((_in_words(x, end) for x in lines if x[:1] == "!"), None) or verdict.error
        return Grade(passed, reference.passed, problem)

    def _reference(self, tests: CheckTests) -> "_Reference":
        found = self._references.get(tests)
        if found is None:
            output, end = self._run("calls", {**_checks_of(tests), "solution": tests.solution})
            if not output:
                raise EnvCodeError(f"the checks of {tests.entry_point} {end or 'said nothing'}")
            found = msgspec.json.decode(output[0], type=_Reference)
            if found.error is not None or found.failed or not found.passed:
                raise EnvCodeError(f"the checks of {tests.entry_point} do not hold of its own solution: {found.error}")
            self._references[tests] = found
        return found

    def _outputs(
        self, tests: Tests, preamble: str, code: str, calls: Sequence[str], *, as_equal: bool
    ) -> tuple[list[str], str]:
        """A line for each call, as far as it has come, and what has ended it early, in words."""
        asked = {"preamble": preamble, "code": code, "entry_point": tests.entry_point, "calls": calls}
        return self._run("outputs", {**asked, "as_equal": as_equal, "call_seconds": CALL_SECONDS}, len(calls))

    def _run(self, program: str, request: Mapping[str, Any], most: int = 1) -> tuple[list[str], str]:
        """At most so many lines of what a program says, and what has ended it early, in words.

        A sandbox that is lost is tried once more. Two in a row are lost by what runs in them.
        """
        for _ in range(2):
            with suppress(_LostError):
                return self._run_once(program, request, most)
        return [], "was the end of its sandbox, twice"

    def _run_once(self, program: str, request: Mapping[str, Any], most: int) -> tuple[list[str], str]:
        sent = json.dumps({**request, "hidden": self._hidden, "seconds": SECONDS})
        with self._open_sandbox() as box:
            try:
                done = box.exec(
                    ["python3", "-s", "-c", _PROGRAM, program],
                    env={"PYTHONHASHSEED": "0"},  # The same code gets the same grade each time.
                    input=sent,
                    timeout=WALL_SECONDS,
                    output_limit=OUTPUT_LIMIT,
                )
            except SandboxUnavailableError as e:
                raise _LostError from e
            except ExecError as e:
                raise ConfigError(f"{e}. To grade, the sandbox needs a python3 of 3.9 or newer") from e
            except ExecTimeoutError as e:
                stdout, stderr, end = e.stdout_bytes, e.stderr, f"took longer than {e.timeout:g} s"
            else:
                stdout, stderr, end = done.stdout_bytes, done.stderr, _end_of(done)
        # A line without its end is none. What a submission has written is not even counted beyond what is wanted.
        ready, *lines = [line.decode("ascii", "replace") for line in stdout.split(b"\n", most + 1)[:-1]] or [""]
        if not ready:
            raise EnvCodeError(f"the grader could not begin: it {end or 'ended'}, and said {stderr[-500:]!r}")
        if ready != "[]":
            raise ConfigError(
                f"the sandbox shows {ready}, where the answers are. Install Moonmill in a virtual environment, in a "
                "folder that sandboxes do not see"
            )
        return lines, end


class _LostError(Exception):
    """A sandbox has ended under a program."""


class _Verdict(Struct, frozen=True):
    passed: int
    failed: int
    error: str | None


class _Reference(_Verdict, frozen=True):
    calls: tuple[str, ...]
    """What the checks call the solution with."""


def _checks_of(tests: CheckTests) -> dict[str, str]:
    return {"preamble": tests.preamble, "checks": tests.checks, "entry_point": tests.entry_point}


def _end_of(done: ExecResult) -> str:
    if done.oom_killed:
        return "ran out of memory"
    if done.returncode == 128 + signal.SIGXCPU:
        return f"took longer than {SECONDS} s of processor time"
    return f"ended with the exit status {done.returncode}" if done.returncode else ""


def _in_words(line: str | None, end: str) -> str:
    if line is None:
        return f"it {end or 'ended'} before the last call"
    return f"it raised {line[1:]}" if line[:1] == "!" else "it gave another result than is wanted"
