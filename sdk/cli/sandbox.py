"""`moonmill sandbox`: whether the promises of sandboxes hold on this host."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click

from moonmill.cli.options import json_option
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from moonmill.sandboxes.testing import Case, Outcome, Report, Status

_STYLES: "dict[Status, str]" = {"holds": "green", "broken": "red", "not enforced": "yellow", "not shown": "dim"}
_COUNTED: "dict[Status, str]" = {
    "holds": "hold",
    "broken": "broken",
    "not enforced": "not enforced",
    "not shown": "not shown",
}
_EVERY = 20
"""Cases between two lines that say how far it is, where there is no terminal."""


@click.group()
def sandbox() -> None:
    """Check where model-written code runs."""


@sandbox.command("check", cls=Command)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--provider",
    default="local",
    show_default=True,
    metavar="PROVIDER",
    help="local, docker, unsafe-subprocess, or module:factory for one of your own.",
)
@click.option("--image", help="What the sandboxes are made from; by default the provider's own image.")
@click.option("--list", "only_list", is_flag=True, help="List the cases, and run none.")
@json_option
def check(names: tuple[str, ...], provider: str, image: str | None, only_list: bool, as_json: bool) -> None:
    """Find out which promises of a sandbox provider hold on this host.

    NAME is a case, a topic or a promise; without any, all cases are run. What is run is hostile on purpose, and is kept
    small. Ends with the exit code 1 where something is broken that the provider promises.
    """
    from moonmill.cli.output import print_json
    from moonmill.sandboxes.testing import choose

    cases = choose(names)
    if only_list:
        _list(cases, as_json)
        return
    report = _run(cases, provider, image)
    broken = report.having("broken")
    if as_json:
        found = {"provider": report.provider, "broken": len(broken)}
        print_json({**found, "promises": report.promises(), "cases": report.outcomes})
    else:
        _print(report)
    if broken:
        raise click.exceptions.Exit(1)


def _run(cases: "Sequence[Case]", provider: str, image: str | None) -> "Report":
    from moonmill.sandboxes.providers import make_provider
    from moonmill.sandboxes.testing import check
    from moonmill.signals import run_until_stopped

    with _telling(len(cases)) as tell:
        work = partial(check, partial(make_provider, provider), cases=cases, image=image, tell=tell)
        return run_until_stopped(work)


@contextmanager
def _telling(total: int) -> "Iterator[Callable[[Case, Outcome | None], None]]":
    """What to call before and after a case, so that stderr shows how far it is."""
    from moonmill.cli.output import console

    out = console(sys.stderr)
    done = 0
    with out.status("starting") if out.is_terminal else nullcontext() as status:

        def tell(case: "Case", outcome: "Outcome | None") -> None:
            nonlocal done
            if outcome is not None:
                done += 1
                if outcome.status == "broken":
                    out.print(f"broken: {case.name}: {outcome.detail}")
            elif status is not None:
                status.update(f"{done}/{total} {case.name}")
            elif done % _EVERY == 0:
                out.print(f"{done} of {total} cases done, at {case.topic}")

        yield tell


def _print(report: "Report") -> None:
    from moonmill.cli.figures import seconds
    from moonmill.cli.output import console, table

    out = console()
    grid = table(out, "result", "case", "")
    for outcome in report.outcomes:
        text = f"{outcome.statement}: {outcome.detail}" if outcome.detail else outcome.statement
        grid.add_row(outcome.status, outcome.name, text, style=_STYLES[outcome.status])
    out.print(grid)
    out.print()
    grid = table(out, "result", "promise", "cases", f"what {report.provider} says of it")
    for promise in report.promises():
        name = promise.name or "every provider's"
        count = f"{promise.cases}, {promise.broken} broken" if promise.broken else str(promise.cases)
        said = promise.means or (promise.statement if promise.name is None else "nothing")
        grid.add_row(promise.status, name, count, said, style=_STYLES[promise.status])
    out.print(grid)
    out.print()
    counts = ", ".join(f"{len(report.having(status))} {word}" for status, word in _COUNTED.items())
    took = seconds(sum(outcome.seconds for outcome in report.outcomes))
    out.print(f"{report.provider}: {len(report.outcomes)} cases in {took}: {counts}", style="bold")


def _list(cases: "Sequence[Case]", as_json: bool) -> None:
    from moonmill.cli.output import console, print_json, table

    if as_json:
        fields = ("name", "topic", "promise", "statement")
        print_json([{field: getattr(case, field) for field in fields} for case in cases])
        return
    out = console()
    grid = table(out, "case", "promise", "")
    for case in cases:
        grid.add_row(case.name, case.promise or "every provider's", case.statement)
    out.print(grid)
