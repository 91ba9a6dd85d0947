"""`mastermind-v0`: find a secret code by guessing; each guess is answered with how much of it is right.

What always holds:

- A secret is of the `eval` split if a hash of it says so: no seed makes it one to train on.
- A code that was found is worth exactly 1, and nothing else is. A guess earns what it finds out: of the uncertainty
  that there is at first, its share (in bits), halved. What that leaves of 1 is for the code itself.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from moonmill.envs import MultiTurnEnv, metric, stop, tool
from moonmill.envs.library.splits import check_split, checked_levels, split_of
from moonmill.envs.tools import ToolArgumentsError
from moonmill.types import Message, Rollout, Task, ToolCall

SIZES = ((3, 4), (3, 6), (4, 6))
"""By level, how many digits a code has, and from how many they are."""
GUESSES = 10
_FOR_INFORMATION = 0.5
_PARTS = 1024
"""What a guess earns is in these, so that the sums are exact."""
_PROMPT = re.compile(r"(\d) digits, each from 1 to (\d)")
_ANSWER = re.compile(r"(\d) in place, (\d) elsewhere")
_DESCRIPTION = (
    "Guess the secret code. The answer says how many of your digits are right and in their place, and how many more "
    f"are right but belong elsewhere. A digit may occur more than once. There are {GUESSES} guesses."
)


class Mastermind(MultiTurnEnv):
    """Find a secret code by guessing; each guess is answered with how much of it is right.

    Args:
        levels: 1 for codes of 3 digits from 1 to 4, 2 for 3 from 1 to 6, 3 for 4 from 1 to 6; each is as likely as the
            others.
        dense: whether a guess earns something by what it finds out; else only the code is worth something.
    """

    max_turns = 12
    max_seconds = 300.0
    reward_bounds = (0.0, 1.0)

    def __init__(self, levels: Sequence[int] = (1, 2, 3), dense: bool = True) -> None:
        self.levels = checked_levels("mastermind-v0", levels, len(SIZES))
        self.dense = dense
        self.earned = 0.0
        self.guesses: list[str] = []
        self.possible: list[str] = []
        """The codes that fit all answers so far."""

    def tasks(self, split: str) -> Iterator[Task]:
        check_split("mastermind-v0", split)
        rng = self.task_rng(split)
        while True:
            level = rng.choice(self.levels)
            length, digits = SIZES[level - 1]
            code = "".join(str(rng.randint(1, digits)) for _ in range(length))
            if split_of(code) == split:
                prompt = f"Find the secret code: {length} digits, each from 1 to {digits}."
                yield Task(prompt, code, level=str(level), info={"digits": digits})

    @tool(description=_DESCRIPTION)
    def guess(self, code: str) -> str:
        """Guess the secret code.

        Args:
            code: the digits, such as 1231
        """
        secret, digits = self.task.answer, self.task.info["digits"]
        if self.is_found:
            return "you have found it already"
        if not re.fullmatch(rf"[1-{digits}]{{{len(secret)}}}", code):
            raise ToolArgumentsError(f"error: a code has {len(secret)} digits, each from 1 to {digits}")
        before = self.possible or codes(len(secret), digits)
        self.guesses.append(code)
        in_place, elsewhere = right = compare(code, secret)
        self.possible = [c for c in before if compare(code, c) == right]
        if code == secret:
            self.finish(1.0 - self.earned)
        elif self.dense:
            share = math.log(len(before) / len(self.possible)) / (len(secret) * math.log(digits))
            found_out = round(_FOR_INFORMATION * share * _PARTS) / _PARTS
            self.earned += found_out
            self.add_reward(found_out)
        return f"{in_place} in place, {elsewhere} elsewhere"

    @property
    def is_found(self) -> bool:
        return self.task.answer in self.guesses

    @stop
    def out_of_guesses(self) -> bool:
        return len(self.guesses) >= GUESSES

    @metric
    def found(self, rollout: Rollout) -> float:
        return float(self.is_found)

    @metric
    def guesses_made(self, rollout: Rollout) -> float:
        return float(len(self.guesses))


def codes(length: int, digits: int) -> list[str]:
    """All there are."""
    return ["".join(code) for code in product("123456789"[:digits], repeat=length)]


def compare(guess: str, secret: str) -> tuple[int, int]:
    """How many digits are in their place, and how many more belong elsewhere."""
    in_place = sum(a == b for a, b in zip(guess, secret, strict=True))
    return in_place, (Counter(guess) & Counter(secret)).total() - in_place


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next: a script for a `ScriptedAgent`, and what a policy can be warmed up on.

    It guesses the code in the middle of those that fit all answers.

    Args:
        messages: the conversation so far, from the prompt on.
    """
    asked = _PROMPT.search(next(m.content for m in messages if m.role == "user"))
    assert asked is not None
    possible = codes(int(asked[1]), int(asked[2]))
    answers = {m.tool_call_id: _ANSWER.fullmatch(m.content) for m in messages if m.role == "tool"}
    for call in (call for message in messages for call in message.tool_calls):
        if (answer := answers.get(call.id)) and isinstance(call.arguments, dict):
            code, wanted = call.arguments["code"], (int(answer[1]), int(answer[2]))
            possible = [c for c in possible if compare(code, c) == wanted]
    guess = possible[len(possible) // 2]
    return Message("assistant", tool_calls=(ToolCall(f"call-{len(messages)}", "guess", {"code": guess}),))
