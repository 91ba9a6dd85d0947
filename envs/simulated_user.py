"""The other side of a conversation: a user who reveals what they want over several turns.

`UserEnv` is an environment where what the model says without a tool call goes to a user, who answers. `ScriptedUser` is
a user made of data: slots, a goal and a mood; it needs no model, and says the same for the same seed. `ModelUser` is
played by a chat model; `ChatAgent(...).session((), seed)` is one that it can be given.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol

from msgspec import Struct

from moonmill.envs.base import MultiTurnEnv
from moonmill.types import Message

GOODBYE = "[goodbye]"
"""What a model that plays a user says to leave."""


class User(Protocol):
    """Who the model talks with, in one episode."""

    async def reply(self, said: str) -> str | None:
        """The answer to what the model has said; None is the end of the conversation."""
        ...


class UserEnv(MultiTurnEnv):
    """An environment whose other side is a user. A task's prompt is what the user says first.

    A message with tool calls is for the tools, and the user hears nothing of it. One without goes to the user, whose
    answer is the next observation. The episode ends when a tool calls `finish`, or the user leaves.
    """

    user_turns: int = 0
    """How often the user has been asked."""
    _user: User | None = None

    @abstractmethod
    def make_user(self) -> User:
        """The user of this episode; `self.task` and `self.rng` are there. Called once, when the user is first asked."""

    async def step(self, action: Message | str) -> Any:
        """Run the tool calls, or tell the user."""
        message = Message("assistant", action) if isinstance(action, str) else action
        if message.tool_calls or self.finish_reason == "length":
            return await super().step(message)
        self._user = self._user or self.make_user()
        self.user_turns += 1
        answer = await self._user.reply(message.content)
        return answer, 0.0, answer is None, False, {}


class Slot(Struct, frozen=True):
    """One thing that a user may want, and how it is talked about."""

    name: str
    asked: str
    """A regular expression for questions about it, whatever the case."""
    told: tuple[str, ...]
    """Ways to say it in a sentence, with the value as `{}`."""
    brief: str = "{}"
    """How a user of few words says it."""


class Mood(Struct, frozen=True):
    """How a user talks."""

    name: str
    opens_with: int = 1
    """How many slots are told at first."""
    tells: int = 1
    """How many of the slots that are asked for are told in one answer."""
    is_brief: bool = False
    chatter: tuple[str, ...] = ()
    """Sentences that say nothing, one in front of each answer."""
    patience: int = 10
    """How many answers they give before they leave."""


class Goal(Struct, frozen=True):
    """What a user wants, by slot."""

    wanted: dict[str, str]
    at_first: dict[str, str] = {}
    """What is told at first of slots about which the user then changes their mind: with the first answer."""
    otherwise: dict[str, str] = {}
    """What is wanted where the first wish cannot be had. Told when the user hears so."""


_CANNOT = re.compile(
    r"\b(full|fully booked|taken|unavailable|not available|cannot|can't|impossible|another|instead|other)\b", re.I
)
_LOST = ("Sorry, what do you want to know?", "I do not know what you mean.", "Pardon?")


class ScriptedUser:
    """A user made of data.

    They tell what they are asked for, as their mood has it; say when they have changed their mind; name their second
    wish when they hear that the first cannot be had; and leave when their patience is at its end.

    Args:
        slots: what there is to talk about, in order.
        goal: what they want.
        mood: how they talk.
        rng: chooses among ways to say it.
    """

    def __init__(self, slots: Sequence[Slot], goal: Goal, mood: Mood, rng: Random) -> None:
        self._slots = slots
        self._goal = goal
        self._mood = mood
        self._rng = rng
        self._left = mood.patience
        self._to_correct = dict(goal.at_first)

    def opening(self, wish: str) -> str:
        """What they say first: their wish, and some of what belongs to it. Those they will change come first."""
        slots = sorted(self._slots, key=lambda slot: slot.name not in self._goal.at_first)
        known = {**self._goal.wanted, **self._goal.at_first}
        return " ".join((wish, *(self._say(slot, known) for slot in slots[: self._mood.opens_with])))

    async def reply(self, said: str) -> str | None:
        """The answer to what the model has said; None once their patience is at its end."""
        if self._left <= 0:
            return None
        self._left -= 1
        corrected = [slot for slot in self._slots if slot.name in self._to_correct]
        self._to_correct = {}
        parts = [f"Actually, I have changed my mind. {self._say(slot, self._goal.wanted)}" for slot in corrected]
        second = self._goal.otherwise if _CANNOT.search(said) else {}
        asked = [slot for slot in self._slots if slot.name in second]
        asked += [
            slot for slot in self._slots if re.search(slot.asked, said, re.I) and slot not in (*asked, *corrected)
        ]
        now = {**self._goal.wanted, **second}
        parts += [self._say(slot, now) for slot in asked[: self._mood.tells]]
        if not parts:
            return self._rng.choice(_LOST)
        return " ".join((*([self._rng.choice(self._mood.chatter)] if self._mood.chatter else []), *parts))

    def _say(self, slot: Slot, values: Mapping[str, str]) -> str:
        way = slot.brief if self._mood.is_brief else self._rng.choice(slot.told)
        return way.format(values[slot.name])


class Answer(Protocol):
    """One answer of a chat model."""

    @property
    def message(self) -> Message:
        """What it says."""
        ...


class Speaker(Protocol):
    """A chat model in one conversation; a `Session` of an agent is one."""

    async def act(self, new_messages: Sequence[Message], /) -> Answer:
        """Answer what came since the last turn."""
        ...


class ModelUser:
    """A user whom a chat model plays.

    Args:
        speaker: the model, in a conversation of its own. What it raises fails the episode, and is no reward.
        brief: who they are and what they want, in words.
        opening: what they have said first.
    """

    def __init__(self, speaker: Speaker, brief: str, opening: str) -> None:
        self._speaker = speaker
        self._ahead: tuple[Message, ...] = (
            Message(
                "system",
                f"You play a customer who talks to an assistant. {brief} Answer what you are asked, in a sentence or "
                f"two, and tell no more than that. Never play the assistant. When the assistant is of no more use, say "
                f"{GOODBYE}. You have begun by saying: {opening}",
            ),
        )

    async def reply(self, said: str) -> str | None:
        """The answer to what the assistant has said; None when they leave."""
        answer = await self._speaker.act((*self._ahead, Message("user", said)))
        self._ahead = ()
        text = answer.message.content
        return None if GOODBYE in text else text


def brief_of(slots: Sequence[Slot], goal: Goal) -> str:
    """A goal in words, for a model that is to play the user."""
    parts = ["What you want: " + " ".join(slot.told[0].format(goal.wanted[slot.name]) for slot in slots)]
    for slot in slots:
        if slot.name in goal.at_first:
            parts.append(
                f"At first you said otherwise ({goal.at_first[slot.name]}): correct that in your first answer."
            )
        if slot.name in goal.otherwise:
            second = goal.otherwise[slot.name]
            parts.append(f"If {goal.wanted[slot.name]} cannot be had, and only then, you take {second}.")
    return " ".join(parts)
