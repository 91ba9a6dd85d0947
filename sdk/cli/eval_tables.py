"""Evaluations and their comparison as tables for people."""

from collections.abc import Iterable, Sequence

from rich.console import Console

from moonmill.cli.figures import NONE, number, share
from moonmill.cli.output import table
from moonmill.cli.tables import print_failures
from moonmill.reporting import Estimate, EvalResult, LevelResult
from moonmill.trainer.eval_compare import Contrast, EvalComparison, Paired
from moonmill.types import Sampling

_IDS_SHOWN = 10


def print_results(out: Console, results: Sequence[EvalResult], sampling: Sampling | None) -> None:
    """One row an environment and temperature; below one a level; below how it was sampled, and why rollouts failed.

    Args:
        out: where.
        results: of the same player.
        sampling: its own, but for the temperature; None of a script.
    """
    metrics = _all(result.metrics for result in results)
    chances = _all(result.pass_at for result in results)
    used = any(result.usage for result in results)
    cost = any(result.cost is not None for result in results)
    grid = table(
        out,
        *("environment", "T", *_figure_names(chances), "turns", "tool errors", "truncated", *metrics),
        *(("prompt tokens", "completion tokens") * used + ("cost",) * cost),
        "failed",
        numbers=True,
    )
    for r in results:
        usage = (number(r.usage.prompt, 0), number(r.usage.completion, 0)) if r.usage else (NONE, NONE)
        grid.add_row(
            *(r.label, f"{r.temperature:g}", *_figures(r, chances)),
            *(number(r.turns, 1), share(r.tool_error_share), share(r.truncated)),
            *(number(r.metrics.get(name), 3) for name in metrics),
            *(usage * used + (number(r.cost, 4),) * cost),
            str(r.failed),
        )
    out.print(grid)
    if any(r.by_level for r in results):
        out.print()
        grid = table(out, "environment", "T", "level", *_figure_names(chances), numbers=True)
        for r in results:
            for level, figures in r.by_level.items():
                grid.add_row(r.label, f"{r.temperature:g}", level, *_figures(figures, chances))
        out.print(grid)
    if sampling is not None:
        more = "".join(f", {name} {value:g}" for name, value in _narrowed(sampling).items())
        out.print(f"\nsampled: at most {sampling.max_tokens} tokens a turn (sampling.max_tokens){more}")
    print_failures(out, results)


def print_contrasts(out: Console, found: EvalComparison) -> None:
    """What was set otherwise; one row an environment, temperature and figure; the tasks that only one has."""
    out.print(f"A: {found.a}\nB: {found.b}")
    for key, (a, b) in found.settings.items():
        out.print(f"{key}: {a!r:.100} in A, {b!r:.100} in B")
    out.print()
    grid = table(
        out,
        *("environment", "T", "tasks", "figure", "A", "B", "B − A", "95% interval", "B better", "worse", "p"),
        numbers=True,
    )
    for c in found.contrasts:
        temperature = _temperatures(c)
        for name, paired in (("success", c.success), ("reward", c.reward)):
            grid.add_row(c.env, temperature, str(c.tasks), name, *_paired(paired, percent=name == "success"))
    out.print(grid)
    out.print("p: paired sign-flip permutation test over the tasks; with one sample a task McNemar's exact test")
    for c in found.contrasts:
        for side, ids in (("A", c.only_a), ("B", c.only_b)):
            if ids:
                more = f" and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else ""
                where = f"{c.env} at T = {_temperatures(c)}"
                out.print(f"{where}: {len(ids)} tasks scored in {side} alone: {', '.join(ids[:_IDS_SHOWN])}{more}")


def _temperatures(contrast: Contrast) -> str:
    a, b = contrast.temperature_a, contrast.temperature_b
    return f"{a:g}" if a == b else f"{a:g} and {b:g}"


def _narrowed(sampling: Sampling) -> dict[str, float]:
    """What keeps some tokens from being drawn."""
    usual = Sampling()
    named = {"top_p": (sampling.top_p, usual.top_p), "top_k": (sampling.top_k, usual.top_k)}
    return {name: value for name, (value, default) in named.items() if value != default}


def _figure_names(chances: Iterable[str]) -> tuple[str, ...]:
    with_intervals = (word for name in chances for word in (name, "95% interval"))
    return ("tasks", "samples", "success", "95% interval", *with_intervals, "reward", "95% interval")


def _figures(of: EvalResult | LevelResult, chances: Iterable[str]) -> Iterable[str]:
    yield from (str(of.reward.tasks) if of.reward else NONE, str(of.samples), share(of.success))
    yield f"{share(of.low)} to {share(of.high)}"
    for name in chances:
        found = of.pass_at.get(name)
        yield from (share(found.value), f"{share(found.low)} to {share(found.high)}") if found else (NONE, NONE)
    yield from _reward(of.reward)


def _reward(reward: Estimate | None) -> tuple[str, str]:
    if reward is None:
        return NONE, NONE
    return number(reward.value, 3), f"{number(reward.low, 3)} to {number(reward.high, 3)}"


def _paired(paired: Paired, percent: bool) -> tuple[str, ...]:
    d = paired.difference
    if percent:
        sides = (share(paired.a), share(paired.b), f"{100 * d.value:+.1f}")
        interval = f"{100 * d.low:+.1f} to {100 * d.high:+.1f}"
    else:
        sides = (number(paired.a, 3), number(paired.b, 3), f"{d.value:+.3f}")
        interval = f"{d.low:+.3f} to {d.high:+.3f}"
    return *sides, interval, str(paired.better), str(paired.worse), f"{paired.p:.2g}"


def _all(named: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in named for name in names))
