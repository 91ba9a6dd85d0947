"""A comparison as tables for people."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from moonmill.cli.figures import NONE, number, seconds, share
from moonmill.cli.output import table
from moonmill.trainer.compared import ArmFigures, Comparison, Figure

_DIGITS = {"policy updates": 0, "tokens/s": 0, "rollouts/s": 1, "staleness": 2}
_REWARD_DIGITS = 3
_PAIRED = ("reward at the end", "area under the reward")
_TOLD = " *"
_FEW = 4
"""Seeds below which Student's t is so large that an interval says little."""
_MEANS = {
    "success at T = 1": "on held-out tasks after training; other ones for each seed",
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
    out.print(f"speed: rollouts/s, in multiples of those of {result.arms[0].name}")
    if any(1 < arm.finished < _FEW for arm in result.arms):
        out.print(f"of fewer than {_FEW} seeds an interval is wide, and may lead beyond what is possible: take more")
    _print_differences(out, result.arms)
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


def _print_differences(out: Console, arms: Sequence[ArmFigures]) -> None:
    """What can tell the arms apart: rewards and success, seed by seed."""
    first, *others = arms
    names = [name for name in _names(arm.beside_first for arm in others) if name in _PAIRED or "success" in name]
    if not names:
        return
    out.print()
    out.print(f"more than {first.name}, seed by seed; mean ± 95% interval", style="bold")
    grid = table(out, "", *names, numbers=True)
    told = False
    for arm in others:
        cells = [_difference(name, arm.beside_first.get(name)) for name in names]
        told = told or any(cell.endswith(_TOLD) for cell in cells)
        grid.add_row(arm.name, *cells)
    out.print(grid)
    if told:
        out.print(f"{_TOLD.strip()}: the interval leaves out 0, as one in twenty does by chance")


def _difference(name: str, figure: Figure | None) -> str:
    if figure is None:
        return NONE
    scale, digits, unit = (100.0, 1, " points") if "success" in name else (1.0, _REWARD_DIGITS, "")
    mean, margin = scale * figure.mean, None if figure.margin is None else scale * figure.margin
    told = margin is not None and abs(mean) > margin
    return _with_margin(f"{mean:+.{digits}f}", None if margin is None else number(margin, digits)) + unit + _TOLD * told


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
    if arm is first:
        return "1×"
    speed = arm.beside_first.get("speed")
    if speed is None:
        return NONE
    return _with_margin(f"{speed.mean:.2f}", None if speed.margin is None else f"{speed.margin:.2f}") + "×"


def _share_of_wall(arm: ArmFigures, cause: str) -> str:
    waited, wall = arm.waits.get(cause), arm.figures.get("wall clock")
    return share(waited.mean / wall.mean) if waited and wall and wall.mean else NONE
