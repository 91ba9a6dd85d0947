"""A comparison as tables for people."""

from collections.abc import Iterable, Mapping

from rich.console import Console

from moonmill.cli.figures import NONE, number, seconds, share
from moonmill.cli.output import table
from moonmill.trainer.compared import ArmFigures, Comparison, Figure

_DIGITS = {"policy updates": 0, "tokens/s": 0, "rollouts/s": 1, "staleness": 2}
_REWARD_DIGITS = 3
_FEW = 4
"""Seeds below which Student's t is so large that an interval says little."""
_MEANS = {
    "reward at the end": "mean over the last tenth of the steps",
    "area under the reward": "mean over all rollouts trained on",
    "collapsed": "runs that have lost more than half of the reward of their best tenth",
    "explained variance": "the critic's, in the last tenth of the steps",
    "masked": "share of the tokens that the objective left out",
    "staleness": "versions between a rollout's oldest token and the policy trained on it",
}


def print_comparison(out: Console, result: Comparison) -> None:
    """What came of each arm, and who waited for whom."""
    out.print(f"{result.rollouts:,} rollouts a run; mean ± 95% interval over the seeds", style="bold")
    out.print()
    names = _names(arm.figures for arm in result.arms)
    grid = table(out, "", "runs", *names, "speed", numbers=True)
    for arm in result.arms:
        cells = (_figure(name, arm.figures.get(name)) for name in names)
        grid.add_row(arm.name, f"{arm.finished} of {arm.runs}", *cells, _speed(arm, result.arms[0]))
    out.print(grid)
    for name in names:
        if name in _MEANS:
            out.print(f"{name}: {_MEANS[name]}")
    out.print(f"speed: rollouts/s, beside those of {result.arms[0].name}")
    if any(1 < arm.finished < _FEW for arm in result.arms):
        out.print(f"of fewer than {_FEW} seeds an interval is wide, and may lead beyond what is possible: take more")
    out.print()
    out.print("waiting, by cause, as a share of the wall clock", style="bold")
    causes = _names(arm.waits for arm in result.arms)
    grid = table(out, "", *causes, numbers=True)
    for arm in result.arms:
        grid.add_row(arm.name, *(_share_of_wall(arm, cause) for cause in causes))
    out.print(grid)
    if result.picture:
        out.print()
        out.print(result.picture)


def _names(figures: Iterable[Mapping[str, Figure]]) -> list[str]:
    return list(dict.fromkeys(name for of in figures for name in of))


def _figure(name: str, figure: Figure | None) -> str:
    if figure is None:
        return NONE
    if name == "collapsed":
        return f"{sum(figure.values):.0f} of {len(figure.values)}"
    if "success" in name or name == "masked":
        return _share(figure)
    if name == "wall clock":
        return _with_margin(seconds(figure.mean), None if figure.margin is None else seconds(figure.margin))
    digits = _DIGITS.get(name, _REWARD_DIGITS)
    return _with_margin(number(figure.mean, digits), None if figure.margin is None else number(figure.margin, digits))


def _share(figure: Figure) -> str:
    """With its margin, or where that leads beyond what a share can be with the part of the interval that does not."""
    if figure.margin is None:
        return share(figure.mean)
    low, high = figure.mean - figure.margin, figure.mean + figure.margin
    if low >= 0 and high <= 1:
        return _with_margin(share(figure.mean), f"{100 * figure.margin:.1f}")
    return f"{share(figure.mean)} ({share(max(0.0, low))} to {share(min(1.0, high))})"


def _with_margin(mean: str, margin: str | None) -> str:
    return mean if margin is None else f"{mean} ± {margin}"


def _speed(arm: ArmFigures, first: ArmFigures) -> str:
    own, others = arm.figures.get("rollouts/s"), first.figures.get("rollouts/s")
    return f"{own.mean / others.mean:.2f}×" if own and others and others.mean else NONE


def _share_of_wall(arm: ArmFigures, cause: str) -> str:
    waited, wall = arm.waits.get(cause), arm.figures.get("wall clock")
    return share(waited.mean / wall.mean) if waited and wall and wall.mean else NONE
