"""TextArena's games for one player: `textarena:Mastermind-v0`.

A task is a seed, which the game gets; a seed belongs to one split. The games draw from the `random` module, which all
threads of a process share: here the modules of the games find another in its place, that of the episode. So the same
answers to the same task give the same episode, whatever goes on beside it, and nothing outside is drawn from or seeded.
"""

import difflib
import importlib
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any

from msgspec.structs import replace

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.marks import metric
from moonmill.errors import ConfigError, EnvCodeError, MissingExtraError
from moonmill.types import Message, Rollout, Task

EVAL_SHARE = 8
"""One seed in so many belongs to `eval`."""

GAMES = {
    "2048", "Bandit", "Blackjack", "Crosswords", "FifteenPuzzle", "FrozenLake", "GuessTheNumber", "LightsOut",
    "LogicPuzzle", "Mastermind", "Minesweeper", "PegJump", "RushHour", "Secretary", "Set", "Sokoban", "Sudoku",
    "TowerOfHanoi",
}  # fmt: skip
"""What stands before the `-v0` of the games that can be played here."""
_WORDS = "its list of words is downloaded when it begins"
_MODEL = "a model behind a paid API takes part in it"
_PYTHON = "its source needs a newer Python than 3.11"
_SWAPPED = "after a wrong move it gives a text for a reward"
LEFT_OUT: dict[str, str] = {
    "Hangman": _WORDS,
    "WordLadder": _WORDS,
    "WordSearch": _WORDS,
    "Wordle": _WORDS,
    "GuessWho": _MODEL,
    "TwentyQuestions": _MODEL,
    "Klondike": _PYTHON,
    "UltimateTexasHoldem": _PYTHON,
    "Countdown": _SWAPPED,
    "Cryptarithm": _SWAPPED,
    "Slitherlink": _SWAPPED,
    "ThreeCardMonte": _SWAPPED,
    "Sokoban-v0-medium": "it takes ten seconds to think of a room, and holds up all else meanwhile",
    "BabyAiText": "packages it needs are not to be had from PyPI",
}
"""The other games for one player, or forms of a game, and why they are not here."""


class TextArena(MultiTurnEnv):
    """A game of TextArena for one player; a message is a move. Its reward is that of the last turn.

    Args:
        id: the game's name there.
        kwargs: arguments of the game.
        max_turns: turns after which the episode is truncated, unless the game is over before.

    Raises:
        ConfigError: there is no such game, or it cannot be played here.
    """

    reward_bounds = (-1.0, 1.0)

    def __init__(self, id: str, *, kwargs: Mapping[str, Any] | None = None, max_turns: int = 100) -> None:
        self.max_turns = max_turns
        self._id = id
        self._rng = Random(0)
        self._ended_by_wrong_moves = False
        with _drawing_from(self._rng):
            self.game = _made(id, kwargs or {})

    def tasks(self, split: str) -> Iterator[Task]:
        if split not in ("train", "eval"):
            raise ConfigError(f"textarena:{self._id} has no split {split!r}: it has train and eval")
        rng = self.task_rng(split)
        while True:
            seed = rng.randint(1, 2**31 - 1)
            if (seed % EVAL_SHARE == 0) == (split == "eval"):
                yield Task("Play a game: your message is your move.", seed=seed)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        messages, info = super().reset(seed=seed, options=options)
        self._rng.seed(self.task.seed)
        with _drawing_from(self._rng):
            self.game.reset(num_players=1, seed=self.task.seed)
            begun = self._news()
        *before, last = messages
        return (*before, replace(last, content=f"{last.content}\n\n{begun}")), info

    def step(self, action: Message | str) -> Any:
        assert isinstance(action, Message)
        if self.finish_reason == "length" or action.tool_calls:
            return super().step(action)
        with _drawing_from(self._rng):
            done, _ = self.game.step(action=action.content)
            news = self._news()
        if not done:
            return news, 0.0, False, False, {}
        reward, reason = self._outcome()
        return f"{news}\n{reason}".strip(), reward, True, False, {}

    @metric
    def ended_by_wrong_moves(self, rollout: Rollout) -> float:
        return float(self._ended_by_wrong_moves)

    def _news(self) -> str:
        """What the game has said since it was asked last, but for the move itself."""
        _, messages = self.game.get_observation()
        own = _library().ObservationType.PLAYER_ACTION
        return "\n".join(str(text).strip("\n") for _, text, kind in messages if kind is not own)

    def _outcome(self) -> tuple[float, str]:
        """The reward, and the reason in words."""
        rewards, info = self.game.close()
        if not rewards:
            raise EnvCodeError(f"textarena:{self._id} is over, but gives no reward")
        self._ended_by_wrong_moves = info[0]["invalid_move"]
        return rewards[0], str(info[0].get("reason") or "")


def playable_games() -> list[str]:
    """The ids that can be played here, as they stand behind `textarena:`."""
    games = _library().envs.registration.ENV_REGISTRY
    known = [game for game in games if game.partition("-v0")[0] in GAMES and game not in LEFT_OUT]
    return [game for game in known if not game.endswith(("-raw", "-train"))]  # the same game, told otherwise


class _EpisodesRandom:
    """Stands in the place of the `random` module: its functions are those of the episode whose code runs."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(getattr(_here, "rng", random), name, None)
        return getattr(random, name) if found is None else found


_here = threading.local()
_RANDOM = _EpisodesRandom()


@contextmanager
def _drawing_from(rng: Random) -> Iterator[None]:
    _here.rng = rng
    try:
        yield
    finally:
        del _here.rng


@cache
def _library() -> Any:
    before = random.getstate()  # Something that is imported with it seeds it.
    try:
        return importlib.import_module("textarena")
    except ModuleNotFoundError as e:
        raise MissingExtraError("games of TextArena", "textarena") from e
    finally:
        random.setstate(before)


def _made(id: str, kwargs: Mapping[str, Any]) -> Any:
    library = _library()
    games = library.envs.registration.ENV_REGISTRY
    if reason := LEFT_OUT.get(id) or LEFT_OUT.get(id.partition("-v0")[0]):
        raise ConfigError(f"textarena:{id} cannot be played here: {reason}")
    playable = playable_games()
    if id not in playable:
        near = difflib.get_close_matches(id, playable, n=3) or playable
        raise ConfigError(f"TextArena has no game {id!r} for one player: there is {', '.join(near)}")
    importlib.import_module(games[id].entry_point.partition(":")[0])
    for module in [found for name, found in sys.modules.items() if name.startswith("textarena")]:
        if vars(module).get("random") is random:
            vars(module)["random"] = _RANDOM
    try:
        game = library.make(f"{id}-raw", **kwargs)  # Other forms tell the whole story anew in each turn.
    except (TypeError, ValueError) as e:
        raise ConfigError(f"textarena:{id} cannot be made: {e}") from e
    return library.wrappers.ActionFormattingWrapper(game)
