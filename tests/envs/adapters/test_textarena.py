"""TextArena's games."""

import random
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from moonmill import Message, Rollout, Status, StopReason, Task, Taskset, ToolCall, make
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import Script, ScriptedAgent
from moonmill.envs.adapters import textarena
from moonmill.envs.adapters.textarena import GAMES, LEFT_OUT, TextArena, playable_games
from moonmill.errors import ConfigError, MissingExtraError

PAGE = Path(__file__).parents[3] / "docs" / "gymnasium.md"
ONE_OF_EACH = sorted({next(name for name in playable_games() if name.startswith(f"{game}-v0")) for game in GAMES})
SLOW = {"RushHour-v0", "Sokoban-v0"}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a game wants the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def begun(id: str, seed: int) -> tuple[TextArena, str]:
    env: Any = make(f"textarena:{id}")
    observation, _ = env.reset(seed=0, options={"task": Task("Play.", seed=seed)})
    return env, observation[0].content


def play(id: str, script: Script, **arguments: Any) -> Rollout:
    def factory() -> Any:
        return make(f"textarena:{id}", **arguments)

    task = Taskset(factory, "train", seed=0).task(0)
    return anyio.run(lambda: EpisodeRunner(id, factory, ScriptedAgent(script)).run(task, id="0", seed=0))


def halve(messages: Any) -> str:
    """Binary search for a number from 1 to 20."""
    low, high = 1, 20
    for move, answer in zip(messages[1::2], messages[2::2], strict=True):
        number = int(move.content)
        low, high = (number + 1, high) if "higher" in answer.content else (low, number - 1)
    return str((low + high) // 2)


def test_a_game_is_played_to_its_reward_and_shows_only_what_is_new() -> None:
    rollout = play("GuessTheNumber-v0", halve)
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.FINISHED, StopReason.STOPPED, 1.0)
    assert rollout.turn_rewards == (*[0.0] * (rollout.turns - 1), 1.0)
    first, *later = [m.content for m in rollout.messages if m.role == "user"]
    assert "guess the number between 1 and 20" in first
    assert all(re.fullmatch(r"The target number is (higher|lower)\.", text) for text in later[:-1])
    assert later[-1] == "Congratulations! You guessed the correct number."
    assert rollout.metrics == {"ended_by_wrong_moves": 0.0}


def test_a_wrong_move_can_be_made_good_and_the_second_in_a_row_ends_the_game() -> None:
    rollout = play("Mastermind-v0", lambda messages: "I do not know")
    assert (rollout.status, rollout.turns, rollout.reward) == (Status.FINISHED, 2, 0.0)
    assert "You attempted an invalid move." in rollout.messages[2].content
    assert rollout.metrics == {"ended_by_wrong_moves": 1.0}


def test_our_limit_of_turns_truncates() -> None:
    rollout = play("LightsOut-v0", lambda messages: f"[{len(messages) % 5} 1]", max_turns=3)
    assert (rollout.status, rollout.stop_reason) == (Status.TRUNCATED, StopReason.MAX_TURNS)


def test_a_call_and_a_turn_that_was_cut_off_are_no_moves() -> None:
    env, _ = begun("GuessTheNumber-v0", 1)
    answers, _, terminated, *_ = env.step(Message("assistant", tool_calls=(ToolCall("1", "guess"),)))
    assert "there is no tool 'guess'" in answers[0].content
    assert not terminated
    env.finish_reason = "length"
    assert env.step("[3]")[3]


MOVES = ("[up]", "[0 1]", "[A B]", "[1 1 2]", "[stand]", "[1 2 3 4]", "[red]", "[continue]")


def walk(env: TextArena, first: str) -> Iterator[str]:
    yield first
    for move in MOVES:
        observation, reward, terminated, *_ = env.step(move)
        yield f"{observation[0].content if observation else ''} {reward}"
        if terminated:
            return


@pytest.mark.parametrize("id", [game for game in ONE_OF_EACH if game not in SLOW])
def test_episodes_that_take_turns_reproduce_those_played_alone(id: str) -> None:
    outside = random.getstate()
    alone = [list(walk(*begun(id, seed))) for seed in (1, 2, 3)]
    walks = [walk(*begun(id, seed)) for seed in (1, 2, 3)]
    together: list[list[str]] = [[], [], []]
    for _ in range(len(MOVES) + 1):
        for one, seen in zip(walks, together, strict=True):
            seen += [text for text in [next(one, None)] if text is not None]
    assert together == alone
    assert random.getstate() == outside


@pytest.mark.parametrize("id", sorted(SLOW))
def test_games_that_take_long_to_set_up_reproduce_too(id: str) -> None:
    assert list(walk(*begun(id, 1))) == list(walk(*begun(id, 1)))


def test_what_other_threads_draw_and_seed_changes_nothing() -> None:
    def disturb() -> None:
        while not done.is_set():
            random.seed(1)
            random.random()

    alone = [list(walk(*begun("2048-v0", seed))) for seed in range(20)]
    done = threading.Event()
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        disturbed = [list(walk(*begun("2048-v0", seed))) for seed in range(20)]
    finally:
        done.set()
        thread.join()
    assert disturbed == alone


def test_seeds_make_other_games_and_belong_to_one_split() -> None:
    assert len({begun("Sudoku-v0-very-easy", seed)[1] for seed in range(1, 6)}) == 5
    tasksets = [Taskset(lambda: make("textarena:Set-v0"), split, seed=0) for split in ("train", "eval")]
    splits = [{taskset.task(n).seed for n in range(50)} for taskset in tasksets]
    assert not splits[0] & splits[1]
    with pytest.raises(ConfigError, match="has no split 'test'"):
        next(begun("Set-v0", 1)[0].tasks("test"))


def test_importing_the_library_leaves_the_random_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "textarena"]:
        monkeypatch.delitem(sys.modules, name)
    before = random.getstate()
    textarena._library.__wrapped__()
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("Wordle-v0", "cannot be played here: its list of words is downloaded"),
        ("TwentyQuestions-v0-hardcore", "a model behind a paid API"),
        ("Sokoban-v0-medium", "ten seconds"),
        ("Mastermind-v0-easy", "no game 'Mastermind-v0-easy' for one player: there is Mastermind-v0"),
        ("TicTacToe-v0", "no game 'TicTacToe-v0' for one player"),
        ("Mastermind-v0-raw", "no game 'Mastermind-v0-raw'"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused_with_the_reason(id: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(f"textarena:{id}")


def test_arguments_of_the_game_are_passed_on() -> None:
    env: Any = make("textarena:GuessTheNumber-v0", kwargs={"max_number": 7})
    assert "between 1 and 7" in env.reset()[0][0].content
    with pytest.raises(ConfigError, match=r"textarena:Set-v0 cannot be made: .*'cards'"):
        make("textarena:Set-v0", kwargs={"cards": 7})


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    monkeypatch.setattr(textarena, "_library", textarena._library.__wrapped__)
    with pytest.raises(MissingExtraError, match=r"pip install 'moonmill\[textarena\]'"):
        make("textarena:Set-v0")


def test_the_page_names_what_can_be_played_and_what_cannot() -> None:
    section = PAGE.read_text().partition("## TextArena")[2]
    played, _, rest = section.partition("Left out are:")
    assert set(re.findall(r"`(\w+)`[,.]", played.partition("What can be played")[2])) == GAMES
    assert set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| (`.*?) \|", rest, re.MULTILINE)))) == set(LEFT_OUT)
