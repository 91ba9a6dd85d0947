"""A task's last rewards as its baseline: numbers worked out by hand, what a task is known by, what is remembered."""

import json

import pytest

from moonmill.trainer.algorithms import running_mean
from moonmill.trainer.algorithms.running_mean import RunningMean, key_of
from moonmill.types import Message, Task


def test_the_baseline_is_the_mean_of_the_tasks_rewards_from_before_the_batch():
    running = RunningMean(last=8)
    running.advantages(["a", "b", "a"], [1.0, 4.0, 0.0])
    # a: 1 and 0, mean 0.5; b: 4. The second of `a` in this batch is still compared with what was there before it.
    assert running.advantages(["a", "b", "a"], [1.0, 1.0, 0.25]) == [0.5, -3.0, -0.25]


def test_only_the_last_rewards_are_remembered():
    running = RunningMean(last=2)
    for reward in (100.0, 1.0, 2.0):
        running.advantages(["a"], [reward])
    assert running.advantages(["a"], [0.0]) == [-1.5]


def test_an_unseen_task_is_compared_with_the_other_rollouts_of_its_batch():
    # 1 − (0 + 2)/2 = 0; 0 − (1 + 2)/2 = −1.5; 2 − (1 + 0)/2 = 1.5.
    assert RunningMean(8).advantages(["a", "b", "c"], [1.0, 0.0, 2.0]) == [0.0, -1.5, 1.5]


def test_an_unseen_task_alone_in_its_batch_has_no_advantage():
    assert RunningMean(8).advantages(["a"], [3.0]) == [0.0]


def test_the_order_of_a_batch_plays_no_part_in_its_advantages():
    rewards = [0.1, 0.7, 0.3, 1e9, 0.2]
    one = RunningMean(8).advantages(list("abcde"), rewards)
    other = RunningMean(8).advantages(list("edcba"), rewards[::-1])
    assert one == other[::-1]


def test_what_is_remembered_survives_a_round_trip_to_the_last_bit():
    one = RunningMean(last=3)
    one.advantages(["a", "b"], [0.1, 1 / 3])
    other = RunningMean(last=3)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for _ in range(4):
        batch = ["b", "c", "a"], [0.3, 0.7, 1 / 7]
        assert other.advantages(*batch) == one.advantages(*batch)
    assert list(other.state_dict().items()) == list(one.state_dict().items())


def test_the_tasks_longest_not_seen_are_forgotten_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running_mean, "_MOST_TASKS", 2)
    running = RunningMean(last=8)
    for task in ("a", "b", "a", "c"):
        running.advantages([task], [1.0])
    assert list(running.state_dict()) == ["a", "c"]


def test_a_task_is_known_by_the_id_its_author_gave_it():
    one = Task("1+1", answer=2, id="easy/1", split="train", seed=1)
    other = Task("1+1=", answer=3, id="easy/1", split="train", seed=2)
    assert key_of(one) == key_of(other) == "easy/1"


def test_a_task_without_an_id_of_its_own_is_known_by_prompt_and_answer():
    # A generator that begins anew in another order gives the same task another number.
    first = Task("1+1", answer={"value": 2, "unit": "m"}, id="train-0", split="train", seed=1)
    again = Task((Message("user", "1+1"),), answer={"unit": "m", "value": 2}, id="train-10", split="train", seed=99)
    assert key_of(first) == key_of(again)
    assert key_of(first) != key_of(Task("1+1", answer={"value": 3, "unit": "m"}, id="train-0", split="train"))
    assert key_of(first) != key_of(Task("1+2", answer={"value": 2, "unit": "m"}, id="train-0", split="train"))


def test_a_task_without_any_id_is_known_by_prompt_and_answer():
    assert key_of(Task("1+1", answer=2)) == key_of(Task("1+1", answer=2, seed=4)) != key_of(Task("1+1", answer=3))
