"""All checks, in their order."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from statistics import median
from typing import Any

import anyio
from msgspec.structs import replace

from moonmill.blame import text_of
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.checker import again, definition, episodes, leaks, randomness, tasks
from moonmill.envs.checker.findings import Figures, Finding, Report, error, warning
from moonmill.envs.checker.subject import Factory, Subject
from moonmill.envs.foreign import ForeignEnv
from moonmill.envs.threads import on_a_thread
from moonmill.errors import EnvCodeError, MoonmillError
from moonmill.registry import make

_SLOW_STEP_MS = 2000.0
_FEW_TASKS = 0.5
"""In a second."""


def check_env(
    env: str | Factory, *, seed: int = 0, args: Mapping[str, Any] | None = None, checks: Collection[str] | None = None
) -> Report:
    """Look whether an environment keeps what training takes for granted.

    A player that knows nothing but the tools' schemas plays some dozen short episodes. Its calls are made: what a tool
    does outside of a sandbox, it does here.

    Example:
        >>> report = check_env("calculator-v0")
        >>> assert report.ok, report.findings

    Args:
        env: an id, as `make` takes it, or what makes an environment: its class, or a function.
        seed: decides tasks, episodes and the player.
        args: arguments of its constructor.
        checks: names of `CHECKS`; None makes all. Those that they need are made as well.

    Returns:
        What was found. An environment that cannot even be made is a finding too.
    """
    return anyio.run(partial(look, env, seed=seed, args=args, checks=checks))


async def look(
    env: str | Factory,
    *,
    seed: int = 0,
    args: Mapping[str, Any] | None = None,
    checks: Collection[str] | None = None,
    tell: Callable[[str], None] = lambda name: None,
) -> Report:
    """The same in asynchronous code.

    Args:
        env: as for `check_env`; so are the next three.
        seed: see there.
        args: see there.
        checks: see there.
        tell: is given the name of each check before it is made.
    """
    factory = partial(make, env, **(args or {})) if isinstance(env, str) else partial(env, **(args or {}))
    name = env if isinstance(env, str) else getattr(env, "__name__", "the environment")
    subject = Subject(name, factory, seed, (env, args or {}) if isinstance(env, str) else None)
    wanted = _with_needs(CHECKS if checks is None else checks)
    findings: list[Finding] = []
    passed: list[str] = []
    skipped: dict[str, str] = {}
    for check, (method, needs) in CHECKS.items():
        if check not in wanted:
            continue
        failed = {finding.check for finding in findings if finding.level == "error"} | skipped.keys()
        if missing := next((need for need in needs if need in failed), None):
            skipped[check] = missing
            continue
        if check == "episodes" and isinstance(subject.env, ForeignEnv):
            skipped[check] = "its program, which alone can play it"
            continue
        tell(check)
        try:
            found = [replace(finding, check=check) for finding in await method(subject)]
        except MoonmillError as e:
            found = [error(f"the environment's own code broke: {text_of(e)}", "mend it", check=check)]
        findings += found
        if not found:
            passed.append(check)
    return Report(name, tuple(findings), tuple(passed), skipped, _figures(subject))


def _with_needs(checks: Collection[str]) -> set[str]:
    found = set(checks)
    for name in reversed(CHECKS):
        if name in found:
            found |= {*CHECKS[name][1]}
    return found


async def _made(subject: Subject) -> list[Finding]:
    """The constructor makes an environment."""
    try:
        subject.env = await on_a_thread(subject.factory)
        if not isinstance(subject.env, MultiTurnEnv):
            raise EnvCodeError(f"it makes {subject.env!r:.100}, which is no MultiTurnEnv")
    except MoonmillError as e:
        return [error(text_of(e), "mend it: nothing else can be looked at before")]
    except Exception as e:
        return [error(f"its constructor raised {type(e).__name__}: {text_of(e)}", "mend the constructor")]
    return []


async def _speed(subject: Subject) -> list[Finding]:
    """Neither tasks nor steps are so slow that a run would wait for them."""
    figures, found = _figures(subject), []
    if figures.tasks_per_second is not None and figures.tasks_per_second < _FEW_TASKS:
        found.append(
            warning(
                "tasks are made slowly, and a run asks for them one after the other",
                "make them before, and read them in `tasks`; or load in the module what does not change",
                value=f"{figures.tasks_per_second:.2g} in a second",
            )
        )
    if figures.step_ms is not None and figures.step_ms > _SLOW_STEP_MS:
        found.append(
            warning(
                "a step takes long, though the player takes no time",
                "raise async.max_concurrent in the config, so that others play meanwhile; or look where the time goes",
                value=f"{figures.step_ms:.0f} ms",
            )
        )
    return found


def _figures(subject: Subject) -> Figures:
    resets = [1000 * s for trace in subject.traces for s in trace.reset_seconds]
    steps = [1000 * s for trace in subject.traces for s in trace.step_seconds]
    seconds, count = (sum(part) for part in zip(*subject.task_seconds, strict=True)) if subject.task_seconds else (0, 0)
    return Figures(
        median(resets) if resets else None, median(steps) if steps else None, count / seconds if count else None
    )


Check = Callable[[Subject], Awaitable[list[Finding]]]

_PLAYS = ("made", "signatures", "tasks", "episodes")
CHECKS: dict[str, tuple[Check, tuple[str, ...]]] = {
    "made": (_made, ()),
    "signatures": (definition.signatures, ("made",)),
    "documentation": (definition.documentation, ("made",)),
    "schemas": (definition.schemas, ("made",)),
    "tasks": (tasks.tasks, ("made", "signatures")),
    "splits": (tasks.splits, ("tasks",)),
    "prompts": (tasks.prompts, ("tasks",)),
    "episodes": (episodes.episodes, ("made", "signatures", "tasks")),
    "rewards": (episodes.rewards, ("episodes",)),
    "scores": (definition.scores, ("episodes",)),
    "randomness": (randomness.randomness, _PLAYS),
    "stability": (tasks.stability, ("tasks", "randomness")),
    "determinism": (episodes.determinism, (*_PLAYS, "randomness")),
    "processes": (again.another_process, (*_PLAYS, "stability", "determinism")),
    "interleaving": (episodes.interleaving, (*_PLAYS, "determinism")),
    "reset": (episodes.reset, (*_PLAYS, "determinism")),
    "recording": (tasks.recording, (*_PLAYS, "determinism")),
    "leaks": (leaks.leaks, _PLAYS),
    "speed": (_speed, ("tasks",)),
}
"""The checks in their order, each with those that it needs to have passed."""
