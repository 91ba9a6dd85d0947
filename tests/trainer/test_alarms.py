"""Alarms: none in recorded healthy runs, some in collapses before the reward is gone, and each for its own sign."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import pytest
from msgspec.structs import replace

from moonmill.trainer.alarms import RULES, Alarms
from moonmill.trainer.records import StepRecord

RECORDED = Path(__file__).parent / "recorded"
HEALTHY = sorted(RECORDED.glob("healthy-*.jsonl"))
COLLAPSED = sorted(RECORDED.glob("collapsed-*.jsonl"))
BATCH = ("",) * 64
"""Only how many rollouts a step consumed matters here."""


def recorded(file: Path) -> Iterator[StepRecord]:
    """The steps of a run: what alarms look at of its `steps.jsonl`."""
    for line in file.read_bytes().splitlines():
        yield replace(msgspec.json.decode(line, type=StepRecord), consumed=BATCH)


@pytest.mark.parametrize("file", HEALTHY, ids=lambda f: f.stem)
def test_a_healthy_run_gives_none(file: Path) -> None:
    alarms = Alarms(strict="sao" in file.stem)
    assert [alarm for record in recorded(file) for alarm in alarms.see(record)] == []


@pytest.mark.parametrize("file", COLLAPSED, ids=lambda f: f.stem)
def test_a_collapse_gives_one_while_most_of_the_reward_is_left(file: Path) -> None:
    steps = list(recorded(file))
    alarms = Alarms(strict="sao" in file.stem)
    first = next(alarm for record in steps for alarm in alarms.see(record))
    rewards = [record.reward or 0.0 for record in steps]
    at_first, at_end = fmean(rewards[:5]), fmean(rewards[-5:])
    assert at_end < 0.1 * at_first
    assert fmean(rewards[first.step - 3 : first.step]) > 0.6 * at_first


def healthy(count: int = 40, **changed: object) -> list[StepRecord]:
    """Steps of a run in which all is well and nothing moves."""
    metrics = {"masked_share": 0.002, "ess": 0.99, "ratio_std": 0.05, "entropy": 0.2, "explained_variance": 0.2}
    record = StepRecord(0, 0, BATCH, turns=3.0, tool_fault_share=0.05, truncated=0.02, reward=0.5, metrics=metrics)
    return [replace(record, step=step) for step in range(1, count + 1)]


def changed(steps: Sequence[StepRecord], since: int, field: str, value: float) -> list[StepRecord]:
    """The same with another value from a step on."""

    def change(record: StepRecord) -> StepRecord:
        if (record.step or 0) < since:
            return record
        if field in StepRecord.__struct_fields__:
            return replace(record, **{field: value})
        return replace(record, metrics={**record.metrics, field: value})

    return [change(record) for record in steps]


def given(steps: Sequence[StepRecord], alarms: Alarms | None = None) -> list[tuple[str, int]]:
    alarms = alarms or Alarms(strict=True)
    return [(alarm.name, alarm.step) for record in steps for alarm in alarms.see(record)]


@pytest.mark.parametrize(
    ("name", "field", "value", "step"),
    [
        ("masked_share", "masked_share", 0.2, 20),
        ("ess", "ess", 0.1, 21),
        ("ratio_std", "ratio_std", 0.9, 21),
        ("entropy_low", "entropy", 0.01, 22),
        ("entropy_high", "entropy", 1.0, 21),
        ("turns_low", "turns", 1.0, 21),
        ("turns_high", "turns", 6.0, 21),
        ("tool_errors", "tool_fault_share", 0.5, 21),
        ("truncated", "truncated", 0.5, 21),
        ("reward", "reward", 0.3, 21),
        ("explained_variance", "explained_variance", -0.9, 27),
        ("same_rewards", "same_rewards", 1.0, 39),
    ],
)
def test_each_sign_has_its_alarm_given_once(name: str, field: str, value: float, step: int) -> None:
    """The means of the newest steps are worked out by hand: for `masked_share`, (0.2 + 2 · 0.002) / 3 > 0.05 at 20."""
    assert given(changed(healthy(), 20, field, value)) == [(name, step)]


def test_every_alarm_is_tried_here() -> None:
    tried = test_each_sign_has_its_alarm_given_once.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert [case[0] for case in tried] == [rule.name for rule in RULES]


def test_what_changes_as_the_reward_rises_is_learning() -> None:
    steps = changed(changed(healthy(), 20, "turns", 6.0), 20, "reward", 0.8)
    assert given(steps) == []


def test_the_critics_warm_up_is_a_past_to_compare_with() -> None:
    warm_up = [replace(record, metrics={}) for record in healthy(8)]
    steps = [*warm_up, *changed(healthy(20)[8:], 9, "tool_fault_share", 0.6)]
    assert given(steps) == [("tool_errors", 10)]


def test_small_batches_are_taken_together_until_there_are_enough_rollouts() -> None:
    few = [replace(record, consumed=BATCH[:8]) for record in healthy(60)]
    assert given(changed(few, 40, "masked_share", 0.5)) == [("masked_share", 41)]
    # One step among the newest 16: 6 of 8 rollouts of it had a fault.
    odd = changed(few, 40, "tool_fault_share", 0.75)[:40] + few[40:]
    assert given(odd) == []


def test_a_single_token_that_decides_a_step_is_no_alarm() -> None:
    steps = healthy()
    steps[20] = changed(steps, 21, "ratio_std", 50.0)[20]
    assert given(steps) == []


def test_objectives_that_clip_by_design_may_leave_out_more() -> None:
    steps = changed(healthy(), 20, "masked_share", 0.2)
    assert given(steps, Alarms()) == []
    assert given(changed(steps, 30, "masked_share", 0.5), Alarms()) == [("masked_share", 31)]


def test_an_alarm_can_be_turned_off() -> None:
    assert given(changed(healthy(), 20, "masked_share", 0.2), Alarms(["masked_share"], strict=True)) == []


def test_after_a_fall_back_the_steps_behind_it_are_unseen_and_alarms_are_given_again() -> None:
    alarms = Alarms(strict=True)
    bad = changed(healthy(30), 20, "masked_share", 0.2)
    assert given(bad, alarms) == [("masked_share", 20)]
    assert given([StepRecord(31, 30, rolled_back_to=10)], alarms) == []
    again = [replace(record, step=record.step + 31) for record in healthy(10) if record.step]
    assert given(again, alarms) == []
    worse = [replace(record, step=record.step + 41) for record in bad[19:29] if record.step]
    assert given(worse, alarms)[0][0] == "masked_share"
