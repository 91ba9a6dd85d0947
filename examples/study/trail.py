"""Follow a trail of pages: the environment of the study.

A task is a first page and a number of steps, `47/5`. The tool shows a page, with how many steps are left:

    4 w71 n82 m15 v39 u60

The next page is `n` where `w` is even, else `m`. With no steps left, the answer is the page's `v`. A page off the trail
has `x` for the steps left; the trail goes on from where it was left. So an episode is long, most of its tokens are
observations, a wrong step costs turns, of which there are few, and what it costs stands in an observation.

Pages can be slow, by a log-normal time, so that episodes are of very different length. What always holds:

- What a page shows depends on the task and the page's number alone.
- A task is in the `eval` split if a hash of it says so, in `train` otherwise.
"""

import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count

import anyio

from moonmill.envs import MultiTurnEnv, metric, reward, tool
from moonmill.envs.tools import ToolArgumentsError
from moonmill.types import Message, Rollout, Status, Task, ToolCall

LEVELS = (2, 3, 4, 5, 6)
"""Numbers of steps; each is as likely as the others."""
EVAL_SHARE = 8
"""One task in so many belongs to `eval`."""
SPREAD = 1.4
"""Of the logarithm of a page's seconds: one page in a hundred takes 26 times as long as the median."""
ASTRAY = "x"
"""Stands in place of the steps left on a page that is not of the trail, or not its next."""
SECOND_CHOICE = 0.2
"""Share of tasks in which the expert answers `u` instead: a policy that has learned from it has that to unlearn."""


class Trail(MultiTurnEnv):
    """Follow a trail of pages, and answer with what stands on the last.

    Args:
        pool: the train split has so many tasks, again and again; None for tasks without end.
        seconds: the median time a page takes.
    """

    max_turns = 10
    max_seconds = 120.0
    reward_bounds = (0.0, 1.0)

    def __init__(self, pool: int | None = None, seconds: float = 0.0) -> None:
        self.pool = pool
        self.seconds = seconds

    def tasks(self, split: str) -> Iterator[Task]:
        found: list[Task] = []
        fresh = self._fresh(split)
        for number in count():
            if split == "train" and self.pool is not None and number >= self.pool:
                task = found[number % self.pool]
            else:
                task = next(fresh)
                found.append(task)
            first, steps = _read(str(task.prompt))
            yield Task(task.prompt, content(page_at(first, steps))["v"], id=str(task.prompt), level=str(steps))

    def _fresh(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            text = f"{rng.randint(100, 999)}/{rng.choice(LEVELS)}"
            if split_of(text) == split:
                yield Task(text)

    @tool
    async def show(self, page: str) -> str:
        """Show a page.

        Args:
            page: its number
        """
        if not (page.isascii() and page.isdigit() and len(page) <= 3):
            raise ToolArgumentsError("error: a page is a number")
        if self.seconds:
            await anyio.sleep(self.seconds * math.exp(self.rng.gauss(0, SPREAD)))
        first, steps = _read(str(self.task.prompt))
        found = sum(message.role == "tool" and message.content[:1].isdigit() for message in self.messages)
        on_trail = found <= steps and int(page) == page_at(first, found)
        fields = " ".join(f"{name}{value}" for name, value in content(int(page)).items())
        return f"{steps - found if on_trail else ASTRAY} {fields}"

    @reward
    def correct(self, rollout: Rollout) -> float:
        return float(rollout.status is Status.FINISHED and rollout.final_number() == self.task.answer)

    @metric
    def pages(self, rollout: Rollout) -> float:
        return float(sum(message.role == "tool" for message in rollout.messages))


def content(page: int) -> dict[str, int]:
    """What stands on a page."""
    digest = blake2b(str(page).encode(), digest_size=10).digest()
    numbers = [int.from_bytes(digest[at : at + 2], "big") for at in range(0, 10, 2)]
    w, n, m, v, u = numbers
    return {"w": 10 + w % 90, "n": 100 + n % 900, "m": 100 + m % 900, "v": 10 + v % 90, "u": 10 + u % 90}


def page_at(first: int, steps: int) -> int:
    """The page of a trail after so many steps."""
    for _ in range(steps):
        first = next_page(content(first))
    return first


def next_page(shown: dict[str, int]) -> int:
    """Where a trail goes on."""
    return shown["n" if shown["w"] % 2 == 0 else "m"]


def split_of(task: str) -> str:
    """The split a task belongs to."""
    return "eval" if blake2b(task.encode(), digest_size=1).digest()[0] % EVAL_SHARE == 0 else "train"


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next; of some tasks it answers with `u`."""
    task = next(m.content for m in messages if m.role == "user")
    page, _ = _read(task)
    pages = [m.content for m in messages if m.role == "tool"]
    for text in pages:
        left, *fields = text.split()
        shown = {field[0]: int(field[1:]) for field in fields}
        if left == "0":
            share = blake2b(f"second {task}".encode(), digest_size=1).digest()[0] / 256
            return Message("assistant", str(shown["u" if share < SECOND_CHOICE else "v"]))
        page = next_page(shown)
    return Message("assistant", tool_calls=(ToolCall(f"call-{len(messages)}", "show", {"page": str(page)}),))


def _read(task: str) -> tuple[int, int]:
    first, steps = task.split("/")
    return int(first), int(steps)
