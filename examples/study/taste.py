"""A calculator for somebody with a taste: an environment in which what is wanted changes in the middle of training.

A right answer can be given in two ways, `230` or `=230`. The one that is wanted is rewarded with 1, the other with
`second`, whatever is wrong with 0. From task number `flip_at` on the other way is wanted: nothing says so but the
rewards. What always holds: a task is the same in both ways but for what is wanted, and a pool of tasks comes again and
again with the same ids, so that what a task has brought before can be remembered.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count, islice

from moonmill.envs import reward
from moonmill.envs.library import calculator
from moonmill.types import Message, Rollout, Status, Task

MARK = "="
"""Stands before an answer, or does not."""


class Taste(calculator.Calculator):
    """Work out a chain of operations, and answer as it is liked.

    Args:
        pool: there are so many tasks, again and again.
        second: the reward of a right answer that is not as it is wanted.
        flip_at: from this task on `=230` is wanted instead of `230`, in both splits: an evaluation of fewer tasks is
            all of the first taste. None for never, 0 for always.
    """

    def __init__(self, pool: int = 512, second: float = 0.5, flip_at: int | None = None) -> None:
        super().__init__()
        self.pool = pool
        self.second = second
        self.flip_at = flip_at

    def tasks(self, split: str) -> Iterator[Task]:
        pool = list(islice(super().tasks(split), self.pool))
        for number in count():
            task = pool[number % self.pool]
            flipped = self.flip_at is not None and number >= self.flip_at
            yield Task(task.prompt, said(task.answer, flipped), id=str(task.prompt), level=task.level)

    @reward
    def correct(self, rollout: Rollout) -> float:
        if rollout.status is not Status.FINISHED:
            return 0.0
        answer, wanted = rollout.final_text(), str(self.task.answer)
        if answer == wanted:
            return 1.0
        return self.second if answer.removeprefix(MARK) == wanted.removeprefix(MARK) else 0.0


def said(number: int, marked: bool) -> str:
    """A right answer, in one of the two ways."""
    return f"{MARK}{number}" if marked else str(number)


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next that has no taste: of half of the tasks it marks the answer."""
    message = calculator.demonstrate(messages)
    if message.tool_calls:
        return message
    task = next(m.content for m in messages if m.role == "user")
    return Message("assistant", said(int(message.content), blake2b(task.encode(), digest_size=2).digest()[1] % 2 == 0))
