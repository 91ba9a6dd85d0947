"""What a run looks like while it goes on, always on stderr: alive on a terminal, one plain line at a time elsewhere."""

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from moonmill.cli.above import lines_to
from moonmill.cli.figures import number, seconds, share
from moonmill.cli.output import console
from moonmill.reporting import EvalResult, Reporter, StepLine

_HISTORY = 60
"""Steps of reward that the live display draws."""
_BARS = "▁▂▃▄▅▆▇█"


@contextmanager
def reporting() -> Iterator[Reporter]:
    """The reporter that suits stderr."""
    if not console(sys.stderr).is_terminal:
        yield PlainReporter()
        return
    with (
        open(os.dup(2), "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors) as terminal,
        LiveReporter(console(terminal)) as reporter,
        lines_to(reporter.printed),
    ):
        yield reporter


class PlainReporter:
    """One line for each event."""

    def phase(self, text: str) -> None:
        click.echo(text, err=True)

    def step(self, line: StepLine) -> None:
        click.echo(step_text(line), err=True)

    def eval(self, result: EvalResult) -> None:
        click.echo(eval_text(result), err=True)

    def warn(self, text: str) -> None:
        click.echo(f"warning: {text}", err=True)


class LiveReporter:
    """A progress bar, the reward's course and the newest step's figures; all else that is said stays above them."""

    def __init__(self, out: Console) -> None:
        self._console = out
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._rewards: deque[float] = deque(maxlen=_HISTORY)
        self._live = Live(
            self._bar,
            console=self._console,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> "LiveReporter":
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def phase(self, text: str) -> None:
        self._bar.update(self._task, description=text)

    def step(self, line: StepLine) -> None:
        if line.reward is not None:
            self._rewards.append(line.reward)
        self._bar.update(self._task, completed=line.step, total=line.steps_total)
        course = Text(f"  reward {sparkline(self._rewards)} {number(line.reward)}", style="green")
        self._live.update(Group(self._bar, course, Text(f"  {step_text(line)}", style="dim")))

    def eval(self, result: EvalResult) -> None:
        self._console.print(eval_text(result), style="bold")

    def warn(self, text: str) -> None:
        self._console.print(f"warning: {text}", style="yellow")

    def printed(self, line: str) -> None:
        """A line that somebody else has printed: a tool, a library."""
        self._console.print(Text.from_ansi(line))


def step_text(line: StepLine) -> str:
    """A step on one line. Figures that were not measured are left out."""
    # Without the policy's figures, a step before the first version was the critic's alone.
    warm_up = " (critic warm-up)" if line.version == 0 and line.masked_share is None else ""
    total = f"at most {line.steps_total}" if line.at_most else str(line.steps_total)
    parts = [f"step {line.step}/{total}{warm_up}", f"v{line.version}"]
    if line.reward is not None:
        parts.append(f"reward {number(line.reward, 3)}")
    if line.success is not None:
        parts.append(f"success {share(line.success)}")
    if line.alike_in:
        parts.append(f"rewards alike in {line.alike_in}")
    parts.append(f"staleness {number(line.staleness_mean, 1)} (max {line.staleness_max})")
    if line.masked_share is not None:
        parts.append(f"masked {share(line.masked_share, 2)}")
    named = {"ratio std": line.ratio_std, "entropy": line.entropy, "expl. var.": line.explained_variance}
    named |= line.switched_on
    parts += [f"{name} {number(value, 3)}" for name, value in named.items() if value is not None]
    shares = {"tool errors": line.tool_errors, "truncated": line.truncated}
    parts += [f"{name} {share(value)}" for name, value in shares.items() if value]
    counts = {"dropped": line.dropped, "failed": line.failed}
    parts += [f"{name} {count}" for name, count in counts.items() if count]
    parts += [f"{number(line.tokens_per_second, 0)} tok/s", seconds(line.seconds)]
    return "  ".join(parts)


def eval_text(result: EvalResult) -> str:
    """An evaluation on one line."""
    text = (
        f"{result.label} at T = {result.temperature:g}: success {share(result.success)} "
        f"({share(result.low)} to {share(result.high)}) of {result.samples}, turns {number(result.turns, 1)}, "
        f"tool errors {share(result.tool_error_share)}, truncated {share(result.truncated)}"
    )
    reasons = ", ".join(f"{failure.count} {failure.reason}" for failure in result.failures)
    return f"{text}, failed {result.failed} ({reasons})" if result.failed else text


def sparkline(values: "deque[float] | list[float]") -> str:
    """`values` as one row of bars, from the lowest to the highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((v - low) * scale)] for v in values)
