"""Notices a collapse early: while there is still something to go back for.

A state machine without I/O. It looks at the records of learner steps, so that a resumed run, which shows it those of
its log, stands where it stood. Each alarm is given once, until the run has fallen back to before it.

A figure is taken over the newest steps: at least 3, and as many as it takes to have 128 rollouts. It is their mean; the
median where a single token can decide a step. Where no limit makes sense for every run, it is compared with the run's
own past: the mean over up to 50 steps before those, of which there must be 5; the critic's warm-up counts. Such an
alarm is given only while the reward is no better than in the past, for a policy that learns changes its ways too.
"""

from collections.abc import Callable, Collection, Sequence
from statistics import fmean, median, pstdev
from typing import Literal, NamedTuple

from msgspec import Struct

from moonmill.alarm_config import AlarmName
from moonmill.trainer.records import StepRecord

MARGIN = 20
"""Learner steps before an alarm that are not trusted any more: a collapse begins before it shows."""
_STEPS, _ROLLOUTS = 3, 128
_LONG = 20
"""Steps for figures that are noise in fewer."""
_PAST_MOST, _PAST_LEAST = 50, 5
_KEPT = 500
"""Records that are looked back on, those included that a fall-back makes unseen."""
_STRICT = 0.05
"""Masked share that `dis` does not have in a healthy run: the paper saw at most 0.6%."""
_LEFT_OUT = ("skipped_updates", "skipped_critic_updates")
"""Metrics that count updates whose loss or gradients were not finite."""
_FAR = 4.0
"""Standard errors that are no chance any more, in thousands of steps."""


_OVER: dict[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "median": median}


class Alarm(Struct, frozen=True):
    """A sign of a collapse."""

    name: AlarmName | Literal["not_finite"]
    step: int
    text: str

    @property
    def ends_the_run(self) -> bool:
        """There is nothing to go on with: only to fall back helps."""
        return self.name == "not_finite"


class _Past(NamedTuple):
    """A figure before the newest steps."""

    mean: float
    error: float
    """Standard error of the mean over as many steps as the newest are."""


class _Rule(NamedTuple):
    """The mean of `value` over the newest steps is not to be beyond a limit."""

    name: AlarmName
    value: Callable[[StepRecord], float | None]
    above: bool
    """Whether it is not to be above it, or not below it."""
    limit: float | Callable[[_Past], float]
    """A number, or made from the past."""
    says: str
    """What is wrong, with places for `now`, `limit` and `past`."""
    steps: int = _STEPS
    over: Literal["mean", "median"] = "mean"


def _metric(name: str) -> Callable[[StepRecord], float | None]:
    return lambda record: record.metrics.get(name)


def _explained_variance(record: StepRecord) -> float | None:
    # Where outcomes hardly vary it is divided by next to nothing: one such step is not to outweigh all others.
    value = record.metrics.get("explained_variance")
    return None if value is None else max(-1.0, value)


RULES = (
    _Rule(
        "masked_share",
        _metric("masked_share"),
        True,
        0.3,
        "{now:.1%} of the action tokens were left out of the update, more than {limit:.0%}",
    ),
    _Rule(
        "ess",
        _metric("ess"),
        False,
        0.5,
        "the effective sample size is {now:.0%} of the action tokens, less than {limit:.0%}",
        over="median",
    ),
    _Rule(
        "ratio_std",
        _metric("ratio_std"),
        True,
        0.3,
        "the ratios to the policies that sampled spread by {now:.2g}, more than {limit:g}",
        over="median",
    ),
    _Rule(
        "entropy_low",
        _metric("entropy"),
        False,
        lambda past: past.mean / 5,
        "the entropy is {now:.2g} nats a token, less than a fifth of the {past:.2g} before",
    ),
    _Rule(
        "entropy_high",
        _metric("entropy"),
        True,
        lambda past: past.mean * 3,
        "the entropy is {now:.2g} nats a token, more than three times the {past:.2g} before",
    ),
    _Rule(
        "turns_low",
        lambda record: record.turns,
        False,
        lambda past: past.mean / 1.5,
        "a rollout has {now:.2g} turns, two thirds of the {past:.2g} before or fewer: answers may come too early",
    ),
    _Rule(
        "turns_high",
        lambda record: record.turns,
        True,
        lambda past: past.mean * 1.5,
        "a rollout has {now:.2g} turns, one and a half times the {past:.2g} before or more",
    ),
    _Rule(
        "tool_errors",
        lambda record: record.tool_fault_share,
        True,
        lambda past: past.mean + 0.2,
        "a tool call failed in {now:.0%} of the rollouts, after {past:.0%} before",
    ),
    _Rule(
        "truncated",
        lambda record: record.truncated,
        True,
        lambda past: past.mean + 0.2,
        "{now:.0%} of the rollouts were truncated, after {past:.0%} before",
    ),
    _Rule(
        "reward",
        lambda record: record.reward,
        False,
        lambda past: past.mean - max(_FAR * past.error, abs(past.mean) / 5),
        "the mean reward is {now:.3g}, more than a fifth below the {past:.3g} before, and further than by chance",
    ),
    _Rule(
        "explained_variance",
        _explained_variance,
        False,
        -0.2,
        "the critic foresees less than a constant would: explained variance {now:.2f}, below {limit:g}",
        _LONG,
    ),
    _Rule(
        "same_rewards",
        lambda record: record.same_rewards,
        True,
        0.9,
        "all rewards were the same in {now:.0%} of the groups, which teaches nothing",
        _LONG,
    ),
)


class Alarms:
    """Looks at each learner step.

    Args:
        off: alarms that are not given.
        strict: the objective is `dis`, whose band is so wide that healthy runs hardly have a token outside it; others
            clip many by design.
        max_bad_steps: so many steps in a row with updates that were left out are an alarm.
    """

    def __init__(self, off: Collection[AlarmName] = (), *, strict: bool = False, max_bad_steps: int = 3) -> None:
        self._max_bad_steps = max_bad_steps
        self._bad_steps = 0
        self._rules = [rule for rule in RULES if rule.name not in off]
        if strict:
            self._rules = [r._replace(limit=_STRICT) if r.name == "masked_share" else r for r in self._rules]
        self._seen: list[StepRecord] = []
        self._given: set[AlarmName] = set()

    def see(self, record: StepRecord) -> list[Alarm]:
        """What is new with this step. A record that goes back to an earlier step makes what came after it unseen."""
        if record.rolled_back_to is not None:
            back = record.rolled_back_to
            self._seen = [seen for seen in self._seen if (seen.step or 0) <= back]
            self._given.clear()
            self._bad_steps = 0
            return []
        if record.step is None:
            return []
        self._seen = [*self._seen[1 - _KEPT :], record]
        alarms = [alarm for rule in self._rules if (alarm := self._judge(rule, record.step))]
        self._bad_steps = self._bad_steps + 1 if any(map(record.metrics.get, _LEFT_OUT)) else 0
        if self._bad_steps < self._max_bad_steps:
            return alarms
        return [
            Alarm(
                "not_finite",
                record.step,
                f"step {record.step}: loss or gradients were not finite in {self._bad_steps} "
                f"step{'s in a row' * (self._bad_steps > 1)} (learner.max_bad_steps): the run has diverged",
            ),
            *alarms,
        ]

    def _judge(self, rule: _Rule, step: int) -> Alarm | None:
        measured = [(record, value) for record in self._seen if (value := rule.value(record)) is not None]
        if rule.name in self._given or not measured or measured[-1][0].step != step:
            return None
        count = _newest(measured, rule.steps)
        if count is None:
            return None
        values = [value for _, value in measured]
        newest, before = values[-count:], values[-count - _PAST_MOST : -count]
        now, past = _OVER[rule.over](newest), None
        limit = rule.limit
        if callable(limit):
            if len(before) < _PAST_LEAST or self._reward_is_better(count):
                return None
            past = _Past(fmean(before), pstdev(before) / count**0.5)
            limit = limit(past)
        if not (now > limit if rule.above else now < limit):
            return None
        self._given.add(rule.name)
        said = rule.says.format(now=now, limit=limit, past=past.mean if past else 0.0)
        return Alarm(rule.name, step, f"step {step}: {said} ({rule.over} of {count} steps)")

    def _reward_is_better(self, count: int) -> bool:
        rewards = [record.reward for record in self._seen if record.reward is not None]
        before = rewards[-count - _PAST_MOST : -count]
        return bool(before) and fmean(rewards[-count:]) > fmean(before)


def _newest(measured: Sequence[tuple[StepRecord, float]], least: int) -> int | None:
    """How many of the newest steps are taken together; None where there are not enough."""
    rollouts = 0
    for count, (record, _) in enumerate(reversed(measured), 1):
        rollouts += len(record.consumed)
        if count >= least and rollouts >= _ROLLOUTS:
            return count
    return None
