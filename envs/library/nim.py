"""`nim-v0`: take the last object, against an opponent who plays as well as the level says.

There are three heaps; whoever's turn it is takes as many objects as they like from one of them. What always holds:

- Whoever plays right from the beginning wins: the nim-sum of the heaps, their exclusive or, is not 0 then, and can be
  made 0 with each move (Bouton 1901).
- A position is of the `eval` split if a hash of it says so, in whatever order its heaps stand.
"""

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import xor
from random import Random

from moonmill.envs import MultiTurnEnv, metric, tool
from moonmill.envs.library.splits import check_split, checked_levels, split_of
from moonmill.envs.tools import ToolArgumentsError
from moonmill.types import Message, Rollout, Task, ToolCall

SKILLS = (0.0, 0.5, 1.0)
"""By level, how often the opponent makes a right move where there is one; else it makes any."""
LARGEST = 7
_NAMES = "ABC"
_MOVE = re.compile(r"\s*([A-C])\s*([1-9])\s*", re.IGNORECASE | re.ASCII)
_HEAPS = re.compile(r"A(\d) B(\d) C(\d)")
_DESCRIPTION = (
    "Take objects from one heap, as many as you like and at least one; then the opponent does so. Whoever takes the "
    "very last object wins."
)

Heaps = tuple[int, ...]
Move = tuple[int, int]
"""The number of a heap, and how many are taken from it."""


class Nim(MultiTurnEnv):
    """Take the last object of three heaps, against an opponent who plays as well as the level says.

    Args:
        levels: 1 for an opponent who plays at random, 2 for one who makes a right move half the time, 3 for one who
            always does; each is as likely as the others.
    """

    max_turns = 3 * LARGEST
    max_seconds = 300.0
    reward_bounds = (0.0, 1.0)

    def __init__(self, levels: Sequence[int] = (1, 2, 3)) -> None:
        self.levels = checked_levels("nim-v0", levels, len(SKILLS))
        self.heaps: Heaps = ()
        self.outcome: str | None = None
        self.right = 0
        self.moves = 0

    def tasks(self, split: str) -> Iterator[Task]:
        check_split("nim-v0", split)
        rng = self.task_rng(split)
        while True:
            heaps = tuple(rng.randint(1, LARGEST) for _ in _NAMES)
            if nim_sum(heaps) and split_of(shown(tuple(sorted(heaps)))) == split:
                yield Task(shown(heaps), level=str(rng.choice(self.levels)), info={"heaps": heaps})

    @tool(description=_DESCRIPTION)
    def take(self, move: str) -> str:
        """Take objects from one heap.

        Args:
            move: the heap and how many, such as B3
        """
        if self.outcome is not None:
            return self.outcome
        heaps = self.heaps or tuple(self.task.info["heaps"])
        found = _MOVE.fullmatch(move)
        mine = (_NAMES.index(found[1].upper()), int(found[2])) if found else None
        if mine not in moves_of(heaps):
            raise ToolArgumentsError(f"error: there are {shown(heaps)}: say a heap and how many to take, such as B3")
        self.moves += 1
        self.right += nim_sum(after(heaps, mine)) == 0
        self.heaps = after(heaps, mine)
        if not any(self.heaps):
            return self._end("you won", 1.0)
        heap, count = theirs = reply(self.rng, self.heaps, SKILLS[int(self.task.level) - 1])
        self.heaps = after(self.heaps, theirs)
        if not any(self.heaps):
            return self._end(f"I took {_NAMES[heap]}{count}, you lost", 0.0)
        return f"I took {_NAMES[heap]}{count}: {shown(self.heaps)}"

    @metric
    def won(self, rollout: Rollout) -> float:
        return float(self.outcome == "you won")

    @metric
    def right_moves(self, rollout: Rollout) -> float | None:
        """The share of moves that leave the opponent no way to win."""
        return self.right / self.moves if self.moves else None

    def _end(self, outcome: str, worth: float) -> str:
        self.outcome = outcome
        self.finish(worth)
        return outcome


def shown(heaps: Heaps) -> str:
    """A position in words: A3 B0 C5."""
    return " ".join(f"{name}{size}" for name, size in zip(_NAMES, heaps, strict=True))


def nim_sum(heaps: Heaps) -> int:
    """0 where the one whose turn it is loses against right play."""
    return reduce(xor, heaps)


def moves_of(heaps: Heaps) -> list[Move]:
    """All there are, in order."""
    return [(heap, count) for heap, size in enumerate(heaps) for count in range(1, size + 1)]


def after(heaps: Heaps, move: Move) -> Heaps:
    """The position that a move leads to."""
    return tuple(size - move[1] * (heap == move[0]) for heap, size in enumerate(heaps))


def reply(rng: Random, heaps: Heaps, skill: float) -> Move:
    """The move of an opponent who makes a right one that often."""
    moves = moves_of(heaps)
    right = [move for move in moves if nim_sum(after(heaps, move)) == 0]
    return rng.choice(right if right and rng.random() < skill else moves)


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next: a script for a `ScriptedAgent`, and what a policy can be warmed up on.

    Args:
        messages: the conversation so far, from the prompt on.
    """
    *_, last = (found for message in messages for found in _HEAPS.findall(message.content))
    heaps = tuple(map(int, last))
    heap, count = next(
        (move for move in moves_of(heaps) if nim_sum(after(heaps, move)) == 0),
        moves_of(heaps)[0],  # there is no right move: somebody else has played before
    )
    call = ToolCall(f"call-{len(messages)}", "take", {"move": f"{_NAMES[heap]}{count}"})
    return Message("assistant", tool_calls=(call,))
