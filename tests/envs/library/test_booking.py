"""The booking environment: a scripted user on the other side."""

from typing import Any

import msgspec
import pytest

from moonmill.envs.library.booking import Wish, demonstrate
from moonmill.errors import ConfigError
from moonmill.registry import make
from moonmill.types import Message, Status, StopReason, Task, ToolCall
from tests.envs.library.playing import experience, play, play_at_once, saying, tasks, told
from tests.envs.parts import call, says

ID = "booking-v0"


def task(level: int, at: int = 0) -> Task:
    return tasks(ID, "train", at + 1, levels=[level])[at]


def booking(played: Task, **changed: Any) -> ToolCall:
    wanted = played.answer.in_the_end
    return ToolCall("1", "book", {**wanted, "people": int(wanted["people"]), **changed})


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_expert_books_what_is_wanted_at_every_level_also_when_episodes_are_interleaved(split: str) -> None:
    played = tasks(ID, split, 60)
    rollouts = play_at_once(ID, played, demonstrate)
    assert {(r.status, r.stop_reason, r.reward) for r in rollouts} == {(Status.FINISHED, StopReason.STOPPED, 1.0)}
    assert {t.level for t in played} == {"1", "2", "3", "4"}
    alone = [play(ID, task, demonstrate, seed) for seed, task in enumerate(played[:5])]
    assert [*map(experience, alone)] == [*map(experience, rollouts[:5])]


def test_the_same_seed_makes_the_same_tasks_and_no_goal_is_in_both_splits() -> None:
    assert tasks(ID, "train", 50) == tasks(ID, "train", 50) != tasks(ID, "train", 50, seed=1)
    goals = {x: {str(t.answer.in_the_end) for s in range(3) for t in tasks(ID, x, 200, s)} for x in ("train", "eval")}
    assert not goals["train"] & goals["eval"]


def test_levels_and_splits_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"booking-v0: levels is .* whole numbers from 1 to 4"):
        make(ID, levels=[5])
    with pytest.raises(ConfigError, match="it has train and eval"):
        tasks(ID, "test", 1)


@pytest.mark.parametrize(
    "script", [saying(), saying("Which day, what time, how many people, what name?"), saying(call("book"))]
)
def test_who_books_nothing_gets_nothing(script: Any) -> None:
    rollout = play(ID, task(1), script)
    assert rollout.reward == 0.0
    assert rollout.metrics["slots_right"] == 0.0


def test_one_slot_wrong_is_worth_nothing_and_measured() -> None:
    rollout = play(ID, task(1), saying(booking(task(1), name="Nobody")))
    assert (rollout.status, rollout.reward) == (Status.FINISHED, 0.0)
    assert rollout.metrics == {"slots_right": 0.75, "questions": 0.0}


def test_to_book_twice_is_wrong() -> None:
    played = task(1)
    both = says(booking(played), booking(played, name="Nobody"), booking(played))
    assert play(ID, played, lambda messages: both).reward == 0.0


def test_a_user_who_changes_their_mind_says_so_before_all_is_known() -> None:
    for at in range(10):
        played = task(3, at)
        changed = played.answer.goal.at_first
        assert next(iter(changed.values())) in str(played.prompt)
        rollout = play(ID, played, saying("And the name?"))
        assert "changed my mind" in told(rollout, "user")[1]


def test_what_is_full_cannot_be_booked_and_the_second_wish_can() -> None:
    played = task(4)
    wanted = played.answer.goal.wanted
    rollout = play(ID, played, saying(booking(played, time=wanted["time"]), booking(played)))
    assert told(rollout) == [f"{wanted['day']} at {wanted['time']} is full: offer another time", "booked"]
    assert rollout.reward == 1.0


def test_a_task_that_comes_from_a_log_is_played_as_well() -> None:
    played = msgspec.json.decode(msgspec.json.encode(task(3)), type=Task)
    assert not isinstance(played.answer, Wish)
    assert play(ID, played, demonstrate).reward == 1.0


@pytest.mark.parametrize("arguments", [{"day": "Someday"}, {"time": "7pm"}, {"people": 0}, {"people": "four"}])
def test_what_cannot_be_booked_is_an_error_and_the_conversation_goes_on(arguments: dict[str, Any]) -> None:
    played = task(1)
    rollout = play(ID, played, saying(booking(played, **arguments), booking(played)))
    assert next(iter(arguments)) in told(rollout)[0]
    assert rollout.reward == 1.0


def test_the_user_leaves_when_nothing_comes_of_it() -> None:
    rollout = play(ID, task(1), lambda messages: Message("assistant", "Hm."))
    assert (rollout.status, rollout.stop_reason, rollout.turns) == (Status.FINISHED, StopReason.STOPPED, 11)
