"""`moonmill envs check`: does an environment keep what training takes for granted."""

import sys
from typing import TYPE_CHECKING

import click

from moonmill.cli.options import args_option, json_option, sandbox_option
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moonmill.envs.checker import Report

_STYLES = {"error": "red", "warning": "yellow"}


@click.command(cls=Command)
@click.argument("env_id", metavar="ID")
@click.option(
    "--only", "checks", multiple=True, metavar="CHECK", help="Only this check, and what it needs. Repeatable."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides tasks, episodes and what is called.")
@sandbox_option
@args_option
@json_option
def check(
    env_id: str, checks: tuple[str, ...], seed: int, provider: str, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Check an environment: definition, tasks, determinism, leaks, speed.

    A player that knows nothing but the tools' schemas plays some dozen short episodes, with right calls and wrong ones:
    what a tool does outside of a sandbox, it does to this machine. Ends with the exit code 1 where there are errors.
    """
    from functools import partial

    from moonmill.cli.output import console, print_json
    from moonmill.config import SandboxConfig
    from moonmill.config_io import make_env_config
    from moonmill.envs import SandboxService
    from moonmill.envs.checker import look
    from moonmill.registry import make
    from moonmill.sandboxes.providers import make_provider
    from moonmill.signals import run_until_stopped

    _require_known(checks)
    make_provider(provider)
    args = make_env_config(env_id, overrides).args
    make(env_id, **args)  # an id that is none is no finding
    with SandboxService(SandboxConfig(provider=provider)):
        work = partial(look, env_id, seed=seed, args=args, checks=checks or None, tell=_tell)
        report = run_until_stopped(work)
    if as_json:
        print_json({"ok": report.ok, **_plain(report)})
    else:
        out = console()
        for finding in report.findings:
            out.print(str(finding), style=_STYLES[finding.level])
        for line in summary(report):
            out.print(line)
    if not report.ok:
        click.get_current_context().exit(1)


def _tell(check: str) -> None:
    """For who waits at a terminal: sandboxes take their time."""
    if sys.stderr is not None and sys.stderr.isatty():
        click.echo(f"{check} …", err=True)


def summary(report: "Report") -> "Iterator[str]":
    """How many checks found nothing, which were not made, and how fast the environment is here."""
    concerned = {finding.check for finding in report.findings}
    made = len(report.passed) + len(concerned)
    yield (
        f"{report.env}: {len(report.passed)} of {made} checks found nothing; {_counted(len(report.errors), 'error')}, "
        f"{_counted(len(report.warnings), 'warning')}"
    )
    for name, needed in report.skipped.items():
        yield f"not made: {name}, because of {needed}"
    figures = report.figures
    told = [f"{name} {ms:.2f} ms" for name, ms in (("reset", figures.reset_ms), ("step", figures.step_ms)) if ms]
    told += [f"{figures.tasks_per_second:,.0f} tasks in a second"] if figures.tasks_per_second else []
    if told:
        yield f"speed here: {', '.join(told)}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _plain(report: "Report") -> dict[str, object]:
    import msgspec

    plain: dict[str, object] = msgspec.to_builtins(report)
    return plain


def _require_known(checks: tuple[str, ...]) -> None:
    import difflib

    from moonmill.envs.checker import CHECKS
    from moonmill.errors import ConfigError

    for name in checks:
        if name not in CHECKS:
            near = difflib.get_close_matches(name, CHECKS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(CHECKS)}"
            raise ConfigError(f"--only: there is no check {name!r}: {hint}")
