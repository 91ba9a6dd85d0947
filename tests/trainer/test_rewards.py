"""Rewards that are all the same are told once, and again only after they were not; how many are, is counted."""

import pytest
from msgspec.structs import replace

from moonmill.trainer.rewards import RewardWatch, alike
from moonmill.types import Rollout, Status, StopReason, Task, ToolFault


def rollout(reward: float, status: Status = Status.FINISHED, *faults: ToolFault) -> Rollout:
    return Rollout("0", "test-v0", Task("?"), status, StopReason.ANSWERED, reward=reward, tool_faults=faults)


def told(watch: RewardWatch, *batches: list[float]) -> list[bool]:
    return [watch.see([rollout(reward) for reward in batch]) is not None for batch in batches]


def test_it_is_told_once_there_are_enough_of_them_and_only_once() -> None:
    zeros = [0.0] * 32
    assert told(RewardWatch(critic=False), zeros, zeros, zeros, zeros) == [False, True, False, False]


def test_the_value_and_the_number_are_named() -> None:
    text = RewardWatch(critic=False).see([rollout(0.5)] * 70)
    assert text is not None
    assert "every reward of the last 70 rollouts is 0.5" in text


@pytest.mark.parametrize(
    ("group", "critic", "learned"),
    [
        ("a", False, "their rewards teach the policy nothing. 0% of"),
        (None, True, "they teach the critic, and the policy only where the critic was wrong. 0% of"),
        (None, False, "the policy learns from them only where their tasks came out otherwise before. 0% of"),
    ],
    ids=["groups", "a critic", "neither"],
)
def test_what_they_teach_all_the_same_is_told(group: str | None, critic: bool, learned: str) -> None:
    text = RewardWatch(critic=critic).see([replace(rollout(0.0), group=group)] * 64)
    assert text is not None
    assert text.startswith(f"every reward of the last 64 rollouts is 0: {learned}")


def test_it_is_told_again_after_it_has_changed() -> None:
    zeros, ones, mixed = [0.0] * 64, [1.0] * 64, [0.0, 1.0] * 32
    assert told(RewardWatch(critic=False), zeros, mixed, zeros, ones) == [True, False, True, True]


def test_what_differs_between_batches_is_not_all_the_same() -> None:
    assert told(RewardWatch(critic=False), *([[float(i % 2)] * 32 for i in range(8)])) == [False] * 8


def test_the_usual_causes_are_told_of_the_rollouts_that_were_alike() -> None:
    fine, cut = rollout(0.0), rollout(0.0, Status.TRUNCATED)
    wrong = rollout(0.0, Status.TRUNCATED, ToolFault("fly", "unknown_tool", 3, "no tool fly"))
    watch = RewardWatch(critic=False)
    assert watch.see([rollout(1.0), cut, wrong]) is None
    assert watch.see([fine] * 32) is None
    text = watch.see([fine] * 16 + [cut] * 8 + [wrong] * 8)
    assert text is not None
    assert "25% of them were truncated, 12% had tool errors" in text


@pytest.mark.parametrize(
    ("rewards", "count"),
    [
        ([(None, 0.5), (None, 0.5)], 2),
        ([(None, 0.5), (None, 0.0)], 0),
        ([(None, 0.5)], 0),
        ([("a", 0.0), ("a", 0.0), ("b", 1.0), ("b", 1.0)], 4),
        ([("a", 0.0), ("a", 0.0), ("b", 1.0), ("b", 0.0), ("b", 0.0)], 2),
        ([("a", 0.0), ("b", 1.0), ("b", 0.0)], 1),
    ],
    ids=["a batch", "a mixed one", "one rollout", "two groups", "one of two", "what is left of a group"],
)
def test_rollouts_are_compared_in_their_group_or_batch(
    rewards: list[tuple[str | None, float | None]], count: int
) -> None:
    assert alike(rewards) == count
