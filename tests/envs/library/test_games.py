"""The games: Mastermind, and nim against a scripted opponent."""

import math
from collections import Counter
from random import Random
from typing import Any

import pytest

from moonmill.envs.library import mastermind, nim
from moonmill.envs.library.mastermind import GUESSES, SIZES, codes, compare
from moonmill.envs.library.nim import after, moves_of, nim_sum, reply
from moonmill.envs.library.splits import split_of
from moonmill.errors import ConfigError
from moonmill.registry import make
from moonmill.types import Message, Rollout, Status, StopReason, Task
from tests.envs.library.playing import experience, play, play_at_once, saying, tasks, told
from tests.envs.parts import call, says

EXPERTS = {"mastermind-v0": mastermind.demonstrate, "nim-v0": nim.demonstrate}
SECRET = Task("Find the secret code: 3 digits, each from 1 to 4.", "312", level="1", info={"digits": 4})
POSITION = Task("A1 B2 C4", level="3", info={"heaps": (1, 2, 4)})


# What both have


@pytest.mark.parametrize("game", EXPERTS)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_expert_wins_at_every_level_also_when_episodes_are_interleaved(game: str, split: str) -> None:
    played = tasks(game, split, 40)
    rollouts = play_at_once(game, played, EXPERTS[game])
    assert {(r.status, r.stop_reason, r.reward) for r in rollouts} == {(Status.FINISHED, StopReason.STOPPED, 1.0)}
    assert {task.level for task in played} == {"1", "2", "3"}
    alone = [play(game, task, EXPERTS[game], seed) for seed, task in enumerate(played[:5])]
    assert [*map(experience, alone)] == [*map(experience, rollouts[:5])]


@pytest.mark.parametrize("game", EXPERTS)
@pytest.mark.parametrize(
    "script", [saying(), saying("I win."), saying(call("guess", code="9"), call("take", move="D1"))]
)
def test_who_says_nothing_or_nonsense_gets_nothing(game: str, script: Any) -> None:
    rollout = play(game, tasks(game, "train", 1)[0], script)
    assert (rollout.status, rollout.reward) == (Status.FINISHED, 0.0)


@pytest.mark.parametrize("game", EXPERTS)
def test_the_same_seed_makes_the_same_tasks_and_levels_can_be_chosen(game: str) -> None:
    assert tasks(game, "train", 50) == tasks(game, "train", 50) != tasks(game, "train", 50, seed=1)
    assert {t.level for t in tasks(game, "eval", 50, levels=[1, 3])} == {"1", "3"}


@pytest.mark.parametrize("game", EXPERTS)
def test_levels_and_splits_that_do_not_exist_are_refused(game: str) -> None:
    for levels in ([], [0], [4], ["1"], 2):
        with pytest.raises(ConfigError, match=f"{game}: levels is .* whole numbers from 1 to 3"):
            make(game, levels=levels)
    with pytest.raises(ConfigError, match=f"{game} has no split 'test': it has train and eval"):
        tasks(game, "test", 1)


# Mastermind


def test_no_secret_is_in_both_splits() -> None:
    train, held_out = (
        {t.answer for s in range(3) for t in tasks("mastermind-v0", x, 300, s)} for x in ("train", "eval")
    )
    assert not train & held_out
    assert {split_of(code) for code in held_out} == {"eval"}
    lengths = Counter((t.level, len(t.answer)) for t in tasks("mastermind-v0", "train", 300))
    assert lengths.keys() == {("1", 3), ("2", 3), ("3", 4)}


@pytest.mark.parametrize(
    ("guess", "secret", "answer"),
    [
        ("123", "123", (3, 0)),
        ("123", "312", (0, 3)),
        ("112", "211", (1, 2)),
        ("111", "122", (1, 0)),
        ("12", "34", (0, 0)),
    ],
)
def test_digits_in_place_are_counted_first_and_each_digit_once(
    guess: str, secret: str, answer: tuple[int, int]
) -> None:
    assert compare(guess, secret) == compare(secret, guess) == answer


def test_a_guess_earns_half_its_share_of_what_there_was_to_find_out_and_the_code_the_rest() -> None:
    turns = [call("guess", code=code) for code in ("122", "122", "312")]
    rollout = play("mastermind-v0", SECRET, saying(*turns))
    assert told(rollout) == ["1 in place, 1 elsewhere", "1 in place, 1 elsewhere", "3 in place, 0 elsewhere"]
    first, second, last = rollout.turn_rewards
    left = sum(compare("122", code) == (1, 1) for code in codes(3, 4))
    assert first == pytest.approx(0.5 * math.log(64 / left) / math.log(64), abs=1 / 1024)
    assert second == 0.0
    assert first + last == rollout.reward == 1.0
    assert rollout.metrics == {"found": 1.0, "guesses_made": 3.0}


def test_with_dense_off_the_code_alone_is_worth_something() -> None:
    turns = (call("guess", code="122"), call("guess", code="312"))
    assert play("mastermind-v0", SECRET, saying(*turns), dense=False).turn_rewards == (0.0, 1.0)
    assert play("mastermind-v0", SECRET, saying(*turns[:1]), dense=False).reward == 0.0


def test_the_last_guess_ends_the_game_and_what_was_found_out_is_less_than_half() -> None:
    rollout = play("mastermind-v0", SECRET, lambda messages: says(call("guess", code=str(111 + len(messages) % 4))))
    assert (rollout.status, rollout.turns) == (Status.FINISHED, GUESSES)
    assert rollout.reward is not None
    assert 0 < rollout.reward < 0.5
    assert rollout.metrics["found"] == 0.0


@pytest.mark.parametrize("code", ["", "12", "1234", "125", "12a", "1 2", "١٢٣", "123\n"])
def test_what_is_no_code_is_an_error_and_no_guess(code: str) -> None:
    rollout = play("mastermind-v0", SECRET, saying(call("guess", code=code), call("guess", code="312")))
    assert told(rollout)[0] == "error: a code has 3 digits, each from 1 to 4"
    assert rollout.metrics["guesses_made"] == 1.0


def test_a_guess_after_the_code_was_found_earns_nothing_more() -> None:
    both = says(call("guess", "1", code="312"), call("guess", "2", code="111"))
    rollout = play("mastermind-v0", SECRET, lambda messages: both)
    assert rollout.reward == 1.0
    assert told(rollout)[1] == "you have found it already"


def test_the_expert_finds_every_code_of_the_smallest_size_in_five_guesses() -> None:
    for secret in codes(*SIZES[0]):
        rollout = [Message("user", SECRET.messages()[0].content)]
        for _ in range(5):
            message = mastermind.demonstrate(rollout)
            code = message.tool_calls[0].arguments["code"]  # type: ignore[index]
            in_place, elsewhere = compare(code, secret)
            answer = f"{in_place} in place, {elsewhere} elsewhere"
            rollout += [message, Message("tool", answer, tool_call_id=message.tool_calls[0].id)]
        assert in_place == 3


# Nim


def test_no_position_is_in_both_splits_in_any_order_and_each_can_be_won() -> None:
    train, held_out = (
        {tuple(sorted(t.info["heaps"])) for s in range(3) for t in tasks("nim-v0", x, 300, s)}
        for x in ("train", "eval")
    )
    assert not train & held_out
    assert all(map(nim_sum, train | held_out))
    assert len(held_out) > 4


def test_a_position_can_be_won_if_its_nim_sum_is_not_0() -> None:
    wins: dict[tuple[int, ...], bool] = {}
    for heaps in ((a, b, c) for a in range(4) for b in range(4) for c in range(4)):
        wins[heaps] = any(not wins[after(heaps, move)] for move in moves_of(heaps))
        assert wins[heaps] == (nim_sum(heaps) != 0)


def test_the_opponent_makes_right_moves_as_often_as_its_skill_says() -> None:
    rng = Random(0)
    for skill, low, high in ((0.0, 0.0, 0.3), (0.5, 0.45, 0.75), (1.0, 1.0, 1.0)):
        moves = [reply(rng, (5, 4, 2), skill) for _ in range(200)]
        assert low <= sum(nim_sum(after((5, 4, 2), move)) == 0 for move in moves) / 200 <= high
    assert reply(rng, (1, 1, 0), 1.0) in [(0, 1), (1, 1)]


def test_a_game_is_told_move_by_move() -> None:
    rollout = play("nim-v0", POSITION, saying(call("take", move="c 2"), call("take", move="C3")))
    first, second = told(rollout)
    assert first == "I took A1: A0 B2 C2"
    assert second == "error: there are A0 B2 C2: say a heap and how many to take, such as B3"
    assert (rollout.reward, rollout.metrics) == (0.0, {"won": 0.0, "right_moves": 0.0})


def test_a_lost_game_ends_with_nothing_and_a_won_one_with_1() -> None:
    lost = play("nim-v0", Task("A1 B1 C0", level="3", info={"heaps": (1, 1, 0)}), saying(call("take", move="A1")))
    assert (told(lost), lost.status, lost.reward) == (["I took B1, you lost"], Status.FINISHED, 0.0)
    twice = says(call("take", "1", move="A2"), call("take", "2", move="A2"))
    won = play("nim-v0", Task("A2 B0 C0", level="3", info={"heaps": (2, 0, 0)}), lambda messages: twice)
    assert (told(won), won.turn_rewards, won.metrics) == (
        ["you won", "you won"],
        (1.0,),
        {"won": 1.0, "right_moves": 1.0},
    )


@pytest.mark.parametrize("move", ["", "A", "3", "A0", "A2", "B3", "D1", "A1 B1", "A-1", "B12", "B²"])
def test_what_is_no_move_is_an_error_and_the_game_goes_on(move: str) -> None:
    rollout = play("nim-v0", POSITION, saying(call("take", move=move), call("take", move="C1")))
    assert told(rollout)[0].startswith("error: there are A1 B2 C4")
    assert told(rollout)[1].startswith("I took")


def test_the_opponent_depends_on_the_episodes_seed_alone() -> None:
    task = Task("A7 B6 C5", level="1", info={"heaps": (7, 6, 5)})

    def first(seed: int) -> Rollout:
        return play("nim-v0", task, saying(call("take", move="A1")), seed)

    assert told(first(1)) == told(first(1))
    assert len({told(first(seed))[0] for seed in range(12)}) > 3
