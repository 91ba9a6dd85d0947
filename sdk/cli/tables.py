"""Results as tables for people."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from moonmill.cli.figures import NONE, number, seconds, share
from moonmill.cli.output import table
from moonmill.reporting import Alike, EvalResult, Summary
from moonmill.trainer.rewards import learned_of_alike
from moonmill.types import ToolFault

_FAULTS_SHOWN = 8
_EXAMPLE_WIDTH = 100
_MOST = 0.5
"""Share of the rollouts from which on it is said what can be done about them."""


def print_summary(out: Console, summary: Summary) -> None:
    """A run: its evaluations, what changed, and where its rollouts and its time went."""
    out.print(f"{summary.run}: {summary.status}, {summary.steps} steps, version {summary.version}", style="bold")
    if summary.error:
        out.print(summary.error, style="red")
    if summary.evals:
        out.print()
        print_evals(out, summary.evals)
        for line in changes(summary.evals):
            out.print(line)
    out.print()
    grid = table(out, "", "")
    grid.show_header = False
    for name, text in _facts(summary):
        grid.add_row(name, text)
    out.print(grid)
    print_faults(out, summary.tool_faults)


def print_evals(out: Console, evals: Sequence[EvalResult]) -> None:
    """One row an evaluation, one column a level and a metric."""
    levels = list(dict.fromkeys(level for result in evals for level in result.by_level))
    metrics = list(dict.fromkeys(name for result in evals for name in result.metrics))
    grid = table(
        out,
        *("evaluation", "T", "samples", "success", "95% interval", *(f"level {level}" for level in levels)),
        *("reward", "turns", "tool errors", "truncated", *metrics, "failed"),
        numbers=True,
    )
    for r in evals:
        by_level = (share(r.by_level[level].success) if level in r.by_level else NONE for level in levels)
        interval = f"{share(r.low)} to {share(r.high)}"
        grid.add_row(
            *(r.label, f"{r.temperature:g}", str(r.samples), share(r.success), interval, *by_level),
            *(number(r.mean_reward, 3), number(r.turns, 1), share(r.tool_error_share), share(r.truncated)),
            *(number(r.metrics.get(name), 3) for name in metrics),
            str(r.failed),
        )
    out.print(grid)
    print_failures(out, evals)


def print_failures(out: Console, evals: Sequence[EvalResult]) -> None:
    """Why rollouts could not be scored."""
    if failures := [(r, failure) for r in evals for failure in r.failures]:
        out.print()
        grid = table(out, "evaluation", "T", "failed", "count", "for example")
        for r, failure in failures:
            row = (r.label, f"{r.temperature:g}", failure.reason, str(failure.count), _shorten(failure.example))
            grid.add_row(*row)
        out.print(grid)


def print_faults(out: Console, faults: Iterable[ToolFault]) -> None:
    """What went wrong in tools, most often first."""
    ordered = sorted(faults, key=lambda f: -f.count)
    if not ordered:
        return
    out.print()
    grid = table(out, "tool fault", "kind", "count", "for example")
    for fault in ordered[:_FAULTS_SHOWN]:
        grid.add_row(fault.tool or NONE, fault.kind, f"{fault.count:,}", _shorten(fault.example))
    out.print(grid)
    if len(ordered) > _FAULTS_SHOWN:
        out.print(f"and {len(ordered) - _FAULTS_SHOWN} more kinds")


def changes(evals: Sequence[EvalResult]) -> list[str]:
    """What became of success between the first and the last evaluation at each temperature."""
    by_temperature: dict[float, list[EvalResult]] = {}
    for result in evals:
        by_temperature.setdefault(result.temperature, []).append(result)
    return [_change(of[0], of[-1]) for of in by_temperature.values() if len(of) > 1]


def _change(first: EvalResult, last: EvalResult) -> str:
    line = (
        f"T = {first.temperature:g}: {share(first.success)} {first.label}, {share(last.success)} {last.label}: "
        f"{100 * (last.success - first.success):+.1f} points"
    )
    if first.samples + first.failed == last.samples + last.failed:
        return line
    return f"{line} (not the same tasks: {first.samples} samples before, {last.samples} now)"


def _facts(s: Summary) -> Iterable[tuple[str, str]]:
    if s.preset and s.lr is not None:
        critic = "" if s.critic_lr is None else f", critic {s.critic_lr:g}"
        yield "trained with", f"{s.preset}; learning rate {s.lr:g}{critic}"
    yield "rollouts", f"{s.rollouts_finished:,} finished, {s.rollouts_trained:,} trained on, {s.pending:,} pending"
    if s.alike and s.alike.rollouts:
        yield "alike rewards", _alike(s.alike)
        if s.alike.rollouts > _MOST:
            yield "", _advice(s.alike, critic=s.critic_lr is not None, cut_off=s.truncated or 0.0)
    yield "truncated", share(s.truncated)
    yield "dropped", _counts(s.dropped)
    yield "failed or unscored", _counts(s.failed)
    if s.sandboxes:
        counts = ", ".join(f"{count:,} {name}" for name, count in s.sandboxes.items())
        yield "sandboxes", f"{counts}; an episode waits {seconds(s.sandbox_seconds or 0)} for its own and others"
    for name, value in s.metrics.items():
        yield f"metric: {name}", f"{number(value, 3)} in the last steps"
    at_most = f"95% at most {s.staleness.p95:g}, maximum {s.staleness.max}"
    yield "staleness", f"mean {number(s.staleness.mean)}, {at_most}"
    yield "masked tokens", share(s.masked_share_mean, 2)
    if s.critic:
        yield "critic", _critic(s.critic)
    if s.alarms or s.fall_backs:
        yield "alarms", f"{_counts(s.alarms)}; fallen back {s.fall_backs}×"
    if s.probe_difference_max is not None:
        yield "engine and learner", f"log-probabilities at most {s.probe_difference_max:.1e} apart after a hand-over"
    parts = f"generation {seconds(s.generation_seconds)}, learning {seconds(s.learning_seconds)}"
    yield "time", f"{seconds(s.wall_seconds)}; {parts}"
    yield "overlap", NONE if s.overlap is None else f"generation ran during {share(s.overlap)} of the learning time"
    yield "trained tokens/s", number(s.tokens_per_second, 0)
    for cause, waited in s.waits.items():
        yield f"wait: {cause}", seconds(waited)
    for name, spread in {"an episode takes": s.episode_seconds, "of that for its tools": s.tool_seconds}.items():
        if spread:
            most = f"95% at most {seconds(spread.p95)}, maximum {seconds(spread.max)}"
            yield name, f"median {seconds(spread.median)}, {most}"


def _alike(a: Alike) -> str:
    others = "group" if a.in_groups else "batch"
    told = f"{share(a.rollouts)} of the rollouts trained on have the reward of all others in their {others}"
    return f"{told}; in {a.steps} of {a.of_steps} steps all have"


def _advice(a: Alike, *, critic: bool, cut_off: float) -> str:
    if a.in_groups:
        rest = "async.filters.zero_std, which trains on other groups instead"
    else:
        rest = "async.filters.success_rate, which passes over tasks that always or never succeed"
    wanted = (
        "tasks that are solved now and then (easier ones, where none is), another model, or a reward with steps between"
    )
    if cut_off > _MOST:
        wanted = f"more room, for {share(cut_off)} were cut off (sampling.max_tokens, model.max_length), {wanted}"
    filtered = f", or {rest}" * (a.rollouts < 1)  # Of rollouts that are all alike a filter leaves none.
    return f"{learned_of_alike(in_groups=a.in_groups, critic=critic)}: take {wanted}{filtered}"


def _critic(health: Mapping[str, float]) -> str:
    bias = health.get("value_bias", 0.0)
    named = {
        "explained variance": health.get("explained_variance_smoothed"),
        f"values too {'low' if bias < 0 else 'high'} by": abs(bias) if "value_bias" in health else None,
        "calibration error": health.get("value_calibration_error"),
    }
    return ", ".join(f"{text} {number(value, 3)}" for text, value in named.items() if value is not None)


def _counts(by_reason: Mapping[str, int]) -> str:
    if not by_reason:
        return "none"
    ordered = sorted(by_reason.items(), key=lambda item: -item[1])
    return f"{sum(by_reason.values()):,} ({', '.join(f'{reason} {n:,}' for reason, n in ordered)})"


def _shorten(text: str) -> str:
    """One line; what is too long loses its middle, for the end tells the place in the code."""
    line = " ".join(text.split())
    if len(line) <= _EXAMPLE_WIDTH:
        return line
    return f"{line[: _EXAMPLE_WIDTH // 2]}…{line[1 - _EXAMPLE_WIDTH // 2 :]}"
