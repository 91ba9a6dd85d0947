"""`booking-v0`: find out from a user what they want, then book it.

The user is scripted (`simulated_user`), and harder to deal with at each level. What always holds:

- The user knows all that is needed, and tells it to whoever asks in their patience.
- A goal is of the `eval` split if a hash of it says so, however it is told.
- A booking is right if it is the only one and all of it is what the user wants in the end.
"""

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from moonmill.envs import metric, reward, tool
from moonmill.envs.library.splits import check_split, checked_levels, split_of
from moonmill.envs.simulated_user import Goal, Mood, ScriptedUser, Slot, User, UserEnv
from moonmill.types import Message, Rollout, Task, ToolCall

Day = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
WISH = "I would like to book a table."
MAX_LEVEL = 4

SLOTS = (
    Slot("day", r"\b(day|date|when)\b", ("It is for {}.", "We would come on {}."), "{}."),
    Slot("time", r"\b(time|hour|when|o'clock)\b", ("At {}, please.", "We would be there at {}."), "{}."),
    Slot("people", r"\b(people|persons?|guests?|many|party)\b", ("We are {} people.", "For {} people."), "{} people."),
    Slot("name", r"\b(name|who)\b", ("The name is {}.", "Please write it down under {}."), "Under {}."),
)
_CHATTER = ("Let me see.", "Good question.", "Ah, yes.", "It is a birthday, by the way.", "We were there last year.")
MOODS = {
    mood.name: mood
    for mood in (
        Mood("friendly", opens_with=2, tells=len(SLOTS), chatter=_CHATTER),
        Mood("terse", opens_with=1, tells=1, is_brief=True),
        Mood("scattered", opens_with=2, tells=1, chatter=_CHATTER),
    )
}
_NAMES = ("Adler", "Brandt", "Castro", "Duval", "Eriksen", "Fuchs", "Greco", "Hall", "Ito", "Jansen", "Kaya", "Lund")
_TIMES = tuple(f"{hour}:{minute:02}" for hour in range(17, 23) for minute in (0, 15, 30, 45))
_HEARD = {
    "day": rf"\b({'|'.join(get_args(Day))})\b",
    "time": r"\b(\d\d:\d\d)\b",
    "people": r"\b(\d+) people\b",
    "name": r"\b(?:name is|[Uu]nder) (\w+)",
}
_QUESTIONS = {
    "day": "For which day?",
    "time": "At what time?",
    "people": "How many people are you?",
    "name": "What is your name?",
}


class Wish(Struct, frozen=True):
    """What a user wants, and how they talk."""

    goal: Goal
    mood: str

    @property
    def in_the_end(self) -> dict[str, str]:
        """What is to be booked."""
        return {**self.goal.wanted, **self.goal.otherwise}


class Booking(UserEnv):
    """Find out from a user what they want, then book it.

    Args:
        levels: 1 for a user who tells all that is asked; 2 for one of few words, who tells one thing at a time; 3 for
            one who changes their mind; 4 for a time that is full, so that another one has to be asked for. Each is as
            likely as the others.
    """

    max_turns = 16
    max_seconds = 600.0
    reward_bounds = (0.0, 1.0)
    system_prompt = (
        "You take bookings for a restaurant. Find out from the customer the day, the time, how many people come, and "
        "the name. When you know all of it, call `book`. What you write without calling it is said to the customer."
    )

    def __init__(self, levels: Sequence[int] = (1, 2, 3, 4)) -> None:
        self.levels = checked_levels("booking-v0", levels, MAX_LEVEL)
        self.bookings: list[dict[str, str]] = []

    def tasks(self, split: str) -> Iterator[Task]:
        check_split("booking-v0", split)
        rng = self.task_rng(split)
        while True:
            level = rng.choice(self.levels)
            wish = _wish(rng, level)
            if split_of(" ".join(wish.in_the_end.values())) == split:
                opening = ScriptedUser(SLOTS, wish.goal, MOODS[wish.mood], rng).opening(WISH)
                yield Task(opening, wish, level=str(level))

    def make_user(self) -> User:
        """The scripted one. Override it for another, such as one that a model plays."""
        return ScriptedUser(SLOTS, self.wish.goal, MOODS[self.wish.mood], self.rng)

    @property
    def wish(self) -> Wish:
        """What the user wants; from a log it comes as plain data."""
        return msgspec.convert(self.task.answer, Wish)

    @tool
    def book(
        self,
        day: Day,
        time: Annotated[str, Meta(pattern=r"^\d\d:\d\d$")],
        people: Annotated[int, Meta(ge=1, le=99)],
        name: str,
    ) -> str:
        """Book a table. This ends the conversation, unless the table cannot be had.

        Args:
            day: the day of the week
            time: hours and minutes, such as 18:30
            people: how many come
            name: the family name
        """
        goal = self.wish.goal
        if "time" in goal.otherwise and (day, time) == (goal.wanted["day"], goal.wanted["time"]):
            return f"{day} at {time} is full: offer another time"
        self.bookings.append({"day": day, "time": time, "people": str(people), "name": name.strip()})
        self.finish()
        return "booked"

    @reward
    def correct(self, rollout: Rollout) -> float:
        return float(self.bookings == [self.wish.in_the_end])

    @metric
    def slots_right(self, rollout: Rollout) -> float:
        """The share of what was booked that is as wanted."""
        wanted = self.wish.in_the_end.items()
        return len(wanted & self.bookings[-1].items()) / len(wanted) if self.bookings else 0.0

    @metric
    def questions(self, rollout: Rollout) -> float:
        return float(self.user_turns)


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next: a script for a `ScriptedAgent`, and what a policy can be warmed up on.

    Args:
        messages: the conversation so far, from the prompt on.
    """
    known: dict[str, str] = {}
    for message in messages:
        if message.role == "user":
            known |= {slot: found[1] for slot, way in _HEARD.items() if (found := re.search(way, message.content))}
    if messages[-1].role == "tool":
        return Message("assistant", "That time is full. What other time would suit you?")
    for slot, question in _QUESTIONS.items():
        if slot not in known:
            return Message("assistant", question)
    arguments = {**known, "people": int(known["people"])}
    return Message("assistant", tool_calls=(ToolCall(f"call-{len(messages)}", "book", arguments),))


def _wish(rng: Random, level: int) -> Wish:
    goal = _drawn(rng)
    mood = {1: "friendly", 2: "terse", 3: "scattered"}.get(level) or rng.choice(("terse", "scattered"))
    at_first, otherwise = {}, {}
    if level == 3:
        changed = rng.choice(("day", "time", "people"))
        at_first = {changed: _other(rng, changed, goal)}
    if level == 4:
        otherwise = {"time": _other(rng, "time", goal)}
    return Wish(Goal(goal, at_first, otherwise), mood)


def _drawn(rng: Random) -> dict[str, str]:
    return {
        "day": rng.choice(get_args(Day)),
        "time": rng.choice(_TIMES),
        "people": str(rng.randint(2, 12)),
        "name": rng.choice(_NAMES),
    }


def _other(rng: Random, slot: str, goal: dict[str, str]) -> str:
    """Another value than the goal has."""
    while (drawn := _drawn(rng)[slot]) == goal[slot]:
        pass
    return drawn
