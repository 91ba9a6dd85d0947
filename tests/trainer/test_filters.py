"""Which rollouts the dynamic filters drop, and that it depends on the log alone."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonmill.config import Config, EnvConfig, FiltersConfig, LearnerConfig, ModelConfig, SuccessRateConfig, TrainConfig
from moonmill.errors import ConfigError, RunError
from moonmill.trainer.buffer import Buffer, Drop
from moonmill.trainer.filters import Filters, check_filters
from moonmill.trainer.useless import refuse_useless
from moonmill.types import Action, Rollout, Status, StopReason, Task

RATE = FiltersConfig(success_rate=SuccessRateConfig(min=0.25, max=0.75, last=4))
ZERO_STD = FiltersConfig(zero_std=True)
OVERLONG = FiltersConfig(overlong=True)


def rollout(
    index: int, reward: float | None = 1.0, *, task: str = "t", stop: StopReason = StopReason.ANSWERED
) -> Rollout:
    cut = stop is not StopReason.ANSWERED
    return Rollout(
        id=str(index),
        env="test-v0",
        task=Task("?", id=task),
        status=Status.TRUNCATED if cut else Status.FINISHED,
        stop_reason=stop,
        index=index,
        segments=(Action((1,), (-0.5,), (0,)),),
        reward=reward,
    )


def groups(size: int, config: FiltersConfig, batch: int = 1, min_valid: int = 2) -> Buffer:
    return Buffer(
        batch_units=batch, window=8, max_staleness=4, group_size=size, min_valid=min_valid, filters=Filters(config)
    )


def put(buffer: Buffer, *rollouts: Rollout) -> None:
    for each in rollouts:
        buffer.admit(each.index)
        buffer.add(each)


@pytest.mark.parametrize("reward", [0.0, 0.3, 1.0])
def test_a_group_whose_rewards_are_all_alike_is_dropped_and_frees_its_places(reward: float) -> None:
    buffer = groups(2, ZERO_STD)
    put(buffer, rollout(0, reward), rollout(1, reward), rollout(2, 0.0), rollout(3, 1.0))
    assert buffer.take_drops() == (Drop("0", "filter: zero_std"), Drop("1", "filter: zero_std"))
    assert buffer.accepted == 2
    batch = buffer.take(0)
    assert batch is not None
    assert [r.id for r in batch.rollouts] == ["2", "3"]


def test_only_members_that_can_be_trained_on_are_compared() -> None:
    buffer = groups(3, ZERO_STD)
    put(buffer, rollout(0, 1.0), rollout(1, None), rollout(2, 1.0))
    assert [d.reason for d in buffer.take_drops()] == ["filter: zero_std", "unscored", "filter: zero_std"]


def test_without_a_filter_nothing_is_dropped() -> None:
    buffer = groups(2, FiltersConfig())
    put(buffer, rollout(0, 0.0), rollout(1, 0.0, stop=StopReason.MAX_TURNS))
    assert buffer.take(0) is not None
    assert buffer.take_drops() == ()


@pytest.mark.parametrize("stop", [StopReason.LENGTH, StopReason.MAX_TOKENS, StopReason.MAX_TURNS])
def test_what_a_limit_of_length_or_turns_has_cut_is_overlong(stop: StopReason) -> None:
    assert Filters(OVERLONG).see(rollout(0, stop=stop)) == "filter: overlong"


@pytest.mark.parametrize("stop", [StopReason.ANSWERED, StopReason.STOPPED, StopReason.TIME_LIMIT])
def test_what_has_ended_otherwise_is_not(stop: StopReason) -> None:
    assert Filters(OVERLONG).see(rollout(0, stop=stop)) is None


def test_the_rest_of_a_group_is_kept_without_its_overlong_members_while_enough_remain() -> None:
    buffer = groups(3, OVERLONG)
    cut = StopReason.MAX_TURNS
    put(buffer, rollout(0, 1.0), rollout(1, 0.0, stop=cut), rollout(2, 0.0))
    put(buffer, rollout(3, 1.0), rollout(4, 0.0, stop=cut), rollout(5, 0.0, stop=cut))
    batch = buffer.take(0)
    assert batch is not None
    assert [r.id for r in batch.rollouts] == ["0", "2"]
    assert buffer.take_drops() == (
        Drop("3", "group_incomplete"),
        Drop("4", "filter: overlong"),
        Drop("5", "filter: overlong"),
        Drop("1", "filter: overlong"),
    )
    assert buffer.accepted == 3, "a unit that was consumed has taken the places of all its members"


def see(filters: Filters, *rewards: float, task: str = "t") -> list[str | None]:
    return [filters.see(rollout(i, reward, task=task)) for i, reward in enumerate(rewards)]


def test_a_task_with_too_few_results_passes() -> None:
    assert see(Filters(RATE), 1.0, 1.0, 1.0, 1.0) == [None] * 4


def test_a_task_solved_too_often_or_too_seldom_is_dropped_whatever_comes_of_the_rollout_itself() -> None:
    filters = Filters(RATE)
    see(filters, 1.0, 1.0, 1.0, 1.0)
    assert see(filters, 0.0) == ["filter: too_easy"]
    other = Filters(RATE)
    see(other, 0.0, 0.0, 0.0, 0.0)
    assert see(other, 1.0) == ["filter: too_hard"]


def test_results_of_dropped_rollouts_count_so_that_a_task_comes_back() -> None:
    filters = Filters(RATE)
    see(filters, 1.0, 1.0, 1.0, 1.0)
    # Rates before each: 4/4, then 3/4, which is not above the bound.
    assert see(filters, 0.0, 1.0) == ["filter: too_easy", None]


def test_tasks_are_judged_apart_and_unscored_rollouts_say_nothing_of_them() -> None:
    filters = Filters(RATE)
    see(filters, 1.0, 1.0, 1.0)
    filters.see(rollout(9, None))
    assert see(filters, 1.0, task="other") == [None]
    assert see(filters, 1.0, 1.0) == [None, "filter: too_easy"]


LINES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0, None]), st.booleans()), min_size=1, max_size=60
)


@given(lines=LINES, cut=st.integers(0, 60), taken=st.integers(0, 5))
def test_a_run_resumed_at_any_line_of_its_log_drops_what_it_would_have_dropped(
    lines: list[tuple[str, float | None, bool]], cut: int, taken: int
) -> None:
    config = msgspec.structs.replace(RATE, overlong=True)
    log = [
        rollout(i, reward, task=task, stop=StopReason.MAX_TURNS if long else StopReason.ANSWERED)
        for i, (task, reward, long) in enumerate(lines)
    ]

    def fresh() -> Buffer:
        return Buffer(batch_units=2, window=4, max_staleness=9, filters=Filters(config))

    whole, first = fresh(), fresh()
    put(whole, *log)
    want = {d.rollout: d.reason for d in whole.take_drops()}
    # What a killed run had logged: some of its steps, each with the drops up to it.
    gone: dict[str, str | None] = {}
    for each in log[:cut]:
        put(first, each)
        if len(gone) < taken and (batch := first.take(0)):
            gone |= {r.id: None for r in batch.rollouts} | {d.rollout: d.reason for d in first.take_drops()}
    second = fresh()
    pending = {r.id for r in log[:cut]} - gone.keys()
    second.restore(log[:cut], pending, sum(reason is None for reason in gone.values()))
    put(second, *log[cut:])
    again = {d.rollout: d.reason for d in second.take_drops()}
    assert again | {name: reason for name, reason in gone.items() if reason} == want


def config(batch: int, folder: Path = Path("none")) -> Config:
    return Config(
        EnvConfig("test-v0"),
        ModelConfig(str(folder)),
        learner=LearnerConfig(batch_rollouts=batch),
        train=TrainConfig(max_failures=4),
    )


def test_filtered_rollouts_end_a_run_only_when_nothing_else_comes_for_long() -> None:
    buffer = groups(2, ZERO_STD)
    for index in range(0, 64, 2):
        refuse_useless(buffer, config(4), None)
        put(buffer, rollout(index), rollout(index + 1))
    with pytest.raises(
        RunError, match=r"the last 64 rollouts were of no use .*: 64 filter: zero_std\..* async\.filters"
    ):
        refuse_useless(buffer, config(4), None)
    put(buffer, rollout(64, 0.0), rollout(65, 1.0))
    refuse_useless(buffer, config(4), None)


def test_failures_between_filtered_rollouts_end_it_as_soon_as_without() -> None:
    buffer = groups(2, ZERO_STD)
    put(buffer, *(rollout(i, 1.0 if i % 4 < 2 else None) for i in range(6)))
    refuse_useless(buffer, config(4), None)
    put(buffer, rollout(6, None), rollout(7, None))
    with pytest.raises(RunError, match="4 filter: zero_std, 4 unscored"):
        refuse_useless(buffer, config(4), None)


@pytest.mark.parametrize(
    ("filters", "group_size", "why"),
    [
        (ZERO_STD, 1, "zero_std: .* single rollouts"),
        (RATE, 8, "success_rate: is for single rollouts"),
        (FiltersConfig(success_rate=SuccessRateConfig(min=0.9, max=0.1)), 1, r"min 0\.9 is above max 0\.1"),
        (FiltersConfig(success_rate=SuccessRateConfig()), 1, "drop nothing"),
    ],
)
def test_a_filter_of_no_use_is_refused(filters: FiltersConfig, group_size: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_filters(filters, group_size)


def test_the_published_filters_are_taken() -> None:
    check_filters(FiltersConfig(zero_std=True, overlong=True), 8)
    check_filters(RATE, 1)
