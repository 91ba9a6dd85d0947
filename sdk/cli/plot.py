"""`moonmill plot`: the curves of one or several runs, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moonmill.cli.results import Command, results
from moonmill.errors import MoonmillError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from moonmill.trainer.records import StepRecord

_PANELS = {
    "reward": "reward",
    "entropy (nats per token)": "entropy",
    "explained variance": "explained_variance",
    "masked share": "masked_share",
    "staleness (mean, versions)": "staleness",
    "share with a failed tool call": "tool_fault_share",
}
_SMOOTH = 5
"""Steps a curve is averaged over: a batch's reward alone is mostly noise."""


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("curves.png"),
    show_default=True,
    help="The picture's file; its ending decides the format: .png, .svg, .pdf, or another that matplotlib knows.",
)
def plot(runs: tuple[Path, ...], out: Path) -> None:
    """Draw the curves of runs into a picture.

    Reward, entropy, explained variance, masked share, staleness and tool failures of all RUNS, over their learner
    steps. The first steps may train the critic alone; they make no new version.
    """
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as e:
        raise MoonmillError("drawing needs matplotlib: pip install 'moonmill[report]'") from e
    mpl.use("agg")
    from matplotlib import pyplot

    from moonmill.jsonl import read_jsonl
    from moonmill.rundir import RunDirectory
    from moonmill.trainer.records import StepRecord

    logs = [[r for r in read_jsonl(RunDirectory.open(run).steps, StepRecord) if r.step is not None] for run in runs]
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 6.5), layout="constrained", sharex=True)
    figure.suptitle(f"each point is the mean of the last {_SMOOTH} steps")
    for (title, name), axis in zip(_PANELS.items(), axes.flat, strict=True):
        for i, records in enumerate(logs):
            _draw(axis, records, name, label=runs[i].name, color=f"C{i % 10}")
        if all(_value(r, name) is None for records in logs for r in records):
            axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center")
            axis.set_yticks([])
        elif name.endswith("_share"):
            axis.set_ylim(bottom=0)
        axis.set(title=title, xlabel="learner step")
        axis.xaxis.set_tick_params(labelbottom=True)
        axis.grid(alpha=0.3)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    try:
        figure.savefig(out, dpi=110)
    except (OSError, ValueError) as e:
        raise MoonmillError(f"cannot write {out}: {e}") from e
    click.echo(str(out), file=results())


def _draw(axis: "Axes", records: Sequence["StepRecord"], name: str, *, label: str, color: str) -> None:
    """One figure of one run. A step before the first version trained the critic alone."""
    points = [(r.step or 0, value) for r in records if (value := _value(r, name)) is not None]
    axis.plot([step for step, _ in points], _smooth([value for _, value in points]), label=label, color=color)
    if warm_up := sum(r.version == 0 for r in records):
        axis.axvline(warm_up + 0.5, color=color, linestyle=":", label=f"{label}: end of the critic's warm-up")


def _value(record: "StepRecord", name: str) -> float | None:
    """None where it was not measured: nothing is, in a step that only goes back after an alarm."""
    if not record.consumed:
        return None
    if name == "staleness":
        return sum(record.staleness) / len(record.staleness) if record.staleness else None
    if name in ("reward", "tool_fault_share"):
        value: float | None = getattr(record, name)
        return value
    return record.metrics.get(name)


def _smooth(values: Sequence[float]) -> list[float]:
    return [sum(part) / len(part) for part in (values[max(0, i + 1 - _SMOOTH) : i + 1] for i in range(len(values)))]
