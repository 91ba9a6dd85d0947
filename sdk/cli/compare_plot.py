"""The curves of a comparison: reward against wall clock, rollouts and tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("agg")
import numpy as np
from matplotlib import pyplot

from moonmill.trainer.compared import Comparison, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Line = tuple[np.ndarray, list[float]]

_PANELS = {"wall clock (minutes)": ("seconds", 60.0), "rollouts": ("rollouts", 1.0), "tokens": ("tokens", 1.0)}
_SMOOTH = 10
"""Steps a curve is averaged over: a batch's reward alone is mostly noise."""
_POINTS = 200
_FEW_RUNS = 4
"""Fewer have a band so wide that it says nothing."""
_MANY_ARMS = 4
"""More, and bands and lines of single runs hide the means."""


def draw(result: Comparison, path: Path) -> None:
    """Draw into a file: of each arm the mean over its runs, its 95% interval as a band, and the runs as thin lines.

    Of few runs there is no band, and of many arms the means alone.
    """
    drawn, axes = pyplot.subplots(1, len(_PANELS), figsize=(15, 4.8), layout="constrained", sharey=True)
    for axis, (title, (against, unit)) in zip(axes, _PANELS.items(), strict=True):
        for place, arm in enumerate(result.arms):
            curves = [run.curve for run in result.runs if run.arm == arm.name and run.curve.reward]
            lines = [(np.asarray(getattr(curve, against)) / unit, _smooth(curve.reward)) for curve in curves]
            _draw_arm(axis, arm.name, lines, f"C{place % 10}", alone=len(result.arms) > _MANY_ARMS)
        axis.set(xlabel=title)
        axis.grid(alpha=0.3)
    # Of few seeds a band is wide: drawn to its ends it would squash the curves.
    rewards = [value for run in result.runs for value in _smooth(run.curve.reward)]
    if rewards:
        room = 0.05 * (max(rewards) - min(rewards)) or 0.05
        axes[0].set_ylim(min(rewards) - room, max(rewards) + room)
    axes[0].set(ylabel=f"mean reward of the last {_SMOOTH} steps")
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    drawn.savefig(path, dpi=110)
    pyplot.close(drawn)


def _draw_arm(axis: "Axes", name: str, lines: Sequence[_Line], color: str, *, alone: bool) -> None:
    if not lines:
        return
    for x, y in () if alone else lines:
        axis.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
    # Only where all runs have been: a mean over fewer of them would jump where one ends.
    grid = np.linspace(max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines), _POINTS)
    at = [figure([float(np.interp(point, x, y)) for x, y in lines]) for point in grid]
    mean = np.array([f.mean for f in at])
    axis.plot(grid, mean, color=color, label=name)
    if len(lines) >= _FEW_RUNS and not alone:
        margin = np.array([f.margin or 0.0 for f in at])
        axis.fill_between(grid, mean - margin, mean + margin, color=color, alpha=0.15, linewidth=0)


def _smooth(values: Sequence[float]) -> list[float]:
    return [sum(part) / len(part) for part in (values[max(0, i + 1 - _SMOOTH) : i + 1] for i in range(len(values)))]
