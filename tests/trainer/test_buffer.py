"""Windowed FIFO, staleness at consumption, groups, and the promise that every rollout leaves exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonmill.trainer.buffer import Buffer, Drop, unfit
from moonmill.types import Action, Rollout, Status, StopReason, Task


def rollout(index: int, *, version: int = 0, status: Status = Status.FINISHED, reward: float | None = 1.0) -> Rollout:
    return Rollout(
        id=str(index),
        env="test-v0",
        task=Task("?"),
        status=status,
        stop_reason=StopReason.ENV_ERROR if status is Status.FAILED else StopReason.ANSWERED,
        index=index,
        segments=(Action((1,), (-0.5,), (version,)),),
        reward=reward,
    )


def single(batch: int = 2, window: int = 4, max_staleness: int = 1) -> Buffer:
    return Buffer(batch_units=batch, window=window, max_staleness=max_staleness)


def admit(buffer: Buffer, *indices: int) -> None:
    for index in indices:
        buffer.admit(index)


def ids(buffer: Buffer, version: int = 0) -> list[str] | None:
    batch = buffer.take(version)
    return None if batch is None else [r.id for r in batch.rollouts]


def test_the_oldest_admitted_go_first_whatever_order_they_finish_in() -> None:
    buffer = single()
    admit(buffer, 0, 1, 2)
    for index in (2, 1, 0):
        buffer.add(rollout(index))
    assert ids(buffer) == ["0", "1"]


def test_a_slow_episode_inside_the_window_is_not_waited_for() -> None:
    buffer = single()
    admit(buffer, 0, 1, 2)
    buffer.add(rollout(1))
    assert ids(buffer) is None
    buffer.add(rollout(2))
    assert ids(buffer) == ["1", "2"]


def test_the_window_does_not_move_past_a_slow_episode() -> None:
    buffer = single(window=3)
    admit(buffer, *range(6))
    for index in (3, 4, 5):
        buffer.add(rollout(index))
    assert ids(buffer) is None  # 0, 1 and 2 are the window, and still running
    buffer.add(rollout(1))
    buffer.add(rollout(2))
    assert ids(buffer) == ["1", "2"]


def test_staleness_is_measured_at_consumption_by_the_oldest_token() -> None:
    buffer = single(batch=1)
    admit(buffer, 0)
    old_then_new = Action((1, 2), (-1.0, -1.0), (3, 5))
    buffer.add(Rollout("0", "e", Task("?"), Status.FINISHED, StopReason.ANSWERED, segments=(old_then_new,), reward=0.0))
    batch = buffer.take(4)
    assert batch is not None
    assert batch.staleness == (1,)


def test_a_stale_rollout_is_dropped_with_its_reason_and_frees_its_place() -> None:
    buffer = single(batch=1)
    admit(buffer, 0, 1)
    buffer.add(rollout(0, version=0))
    buffer.add(rollout(1, version=2))
    assert buffer.accepted == 2
    assert ids(buffer, version=2) == ["1"]
    assert buffer.take_drops() == (Drop("0", "stale"),)
    assert buffer.accepted == 1


def test_max_staleness_zero_means_one_policy() -> None:
    buffer = single(batch=1, max_staleness=0)
    admit(buffer, 0)
    buffer.add(rollout(0, version=0))
    assert ids(buffer, version=1) is None
    assert buffer.take_drops() == (Drop("0", "stale"),)


def test_failed_and_unscored_rollouts_are_dropped_at_once_with_their_reasons() -> None:
    buffer = single()
    admit(buffer, 0, 1)
    buffer.add(rollout(0, status=Status.FAILED, reward=None))
    buffer.add(rollout(1, reward=None))
    assert buffer.take_drops() == (Drop("0", "failed: env_error"), Drop("1", "unscored"))
    assert (buffer.accepted, buffer.running) == (0, 0)


def test_a_group_is_consumed_when_all_its_members_have_ended() -> None:
    buffer = Buffer(batch_units=1, window=1, max_staleness=1, group_size=2, min_valid=2)
    admit(buffer, 0, 1)
    buffer.add(rollout(1))
    assert ids(buffer) is None
    buffer.add(rollout(0))
    assert ids(buffer) == ["0", "1"]


def test_a_group_with_a_failed_member_is_kept_while_enough_remain() -> None:
    buffer = Buffer(batch_units=1, window=1, max_staleness=1, group_size=3, min_valid=2)
    admit(buffer, 0, 1, 2)
    buffer.add(rollout(0))
    buffer.add(rollout(1, status=Status.FAILED, reward=None))
    buffer.add(rollout(2))
    assert ids(buffer) == ["0", "2"]
    assert buffer.take_drops() == (Drop("1", "failed: env_error"),)


def test_a_group_with_too_few_valid_members_is_dropped_whole() -> None:
    buffer = Buffer(batch_units=1, window=1, max_staleness=1, group_size=2, min_valid=2)
    admit(buffer, 0, 1)
    buffer.add(rollout(0))
    buffer.add(rollout(1, status=Status.FAILED, reward=None))
    assert buffer.take_drops() == (Drop("0", "group_incomplete"), Drop("1", "failed: env_error"))


def test_drain_drops_what_is_finished() -> None:
    buffer = single()
    admit(buffer, 0, 1)
    buffer.add(rollout(0))
    buffer.drain("run_ended")
    assert buffer.take_drops() == (Drop("0", "run_ended"),)


def test_a_window_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="window 1 is smaller than a batch of 2"):
        single(window=1)


@given(
    size=st.integers(1, 3),
    order=st.permutations(range(18)),
    failing=st.sets(st.integers(0, 17)),
    ages=st.lists(st.integers(0, 3), min_size=18, max_size=18),
)
def test_every_rollout_leaves_exactly_once(size: int, order: list[int], failing: set[int], ages: list[int]) -> None:
    buffer = Buffer(batch_units=2, window=3, max_staleness=1, group_size=size, min_valid=1)
    admit(buffer, *range(18))
    left: list[str] = []
    version = 3
    for index in order:
        status = Status.FAILED if index in failing else Status.FINISHED
        buffer.add(rollout(index, version=ages[index], status=status, reward=None if index in failing else 1.0))
        while (batch := buffer.take(version)) is not None:
            assert all(s <= 1 for s in batch.staleness)
            left += [r.id for r in batch.rollouts]
            left += [d.rollout for d in buffer.take_drops()]
    buffer.drain("run_ended")
    left += [d.rollout for d in buffer.take_drops()]
    assert sorted(left, key=int) == [str(i) for i in range(18)]


def test_a_rollout_without_sampled_tokens_is_of_no_use() -> None:
    empty = Rollout("0", "e", Task("?"), Status.TRUNCATED, StopReason.TIME_LIMIT, reward=0.0)
    assert unfit(empty) == "no_actions"


def test_useless_rollouts_in_a_row_are_counted_by_reason_until_one_is_of_use() -> None:
    buffer = single()
    admit(buffer, *range(4))
    buffer.add(rollout(0, status=Status.FAILED))
    buffer.add(rollout(1, reward=None))
    assert buffer.useless == {"failed: env_error": 1, "unscored": 1}
    buffer.add(rollout(2))
    assert not buffer.useless


def test_a_group_that_is_given_up_counts_with_its_sound_members() -> None:
    buffer = Buffer(batch_units=1, window=2, max_staleness=1, group_size=3, min_valid=3)
    admit(buffer, *range(6))
    for index in range(6):
        buffer.add(rollout(index, status=Status.FAILED if index % 3 == 0 else Status.FINISHED))
    assert buffer.useless == {"failed: env_error": 2, "group_incomplete": 4}


def test_behind_a_fall_back_everything_goes_now_or_as_it_ends() -> None:
    buffer = single(max_staleness=9)
    admit(buffer, 0, 1, 2)
    buffer.add(rollout(0, version=3))
    buffer.forget_before(5)
    assert buffer.take_drops() == (Drop("0", "rolled_back"),)
    buffer.add(rollout(1, version=4))
    buffer.add(rollout(2, version=5))
    assert buffer.take(6) is None
    assert buffer.take_drops() == (Drop("1", "rolled_back"),)
    assert buffer.finished == 1
