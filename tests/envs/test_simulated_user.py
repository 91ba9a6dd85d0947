"""Users on the other side of a conversation: made of data, or played by a model."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import anyio
import pytest

from moonmill import Message, Status, StopReason, Task, tool
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs.simulated_user import GOODBYE, Goal, ModelUser, Mood, ScriptedUser, Slot, User, UserEnv, brief_of
from moonmill.errors import EngineError, ToolDefinitionError
from tests.envs.library.playing import play, saying, told
from tests.envs.parts import call

COLOUR = Slot("colour", r"\bcolou?r\b", ("It should be {}.",), "{}!")
SIZE = Slot("size", r"\b(size|big)\b", ("Size {}.",), "{}!")
SLOTS = (COLOUR, SIZE)
WANTED = Goal({"colour": "red", "size": "7"})
PLAIN = Mood("plain")


def replies(said: Sequence[str], goal: Goal = WANTED, mood: Mood = PLAIN, seed: int = 0) -> list[str | None]:
    user = ScriptedUser(SLOTS, goal, mood, Random(seed))

    async def main() -> list[str | None]:
        return [await user.reply(text) for text in said]

    return anyio.run(main)


# A user made of data


def test_they_tell_what_they_are_asked_and_as_much_as_their_mood_has_it() -> None:
    both = "What Color, and how big?"
    assert replies(["Which colour?", "What size?", both]) == ["It should be red.", "Size 7.", "It should be red."]
    assert replies([both], mood=Mood("open", tells=2)) == ["It should be red. Size 7."]
    assert replies(["Which colour?"], mood=Mood("terse", is_brief=True)) == ["red!"]


def test_what_they_do_not_understand_they_say() -> None:
    [answer] = replies(["Ωhat?"])
    assert answer is not None
    assert "red" not in answer
    assert answer.endswith(("?", "."))


def test_they_begin_with_their_wish_and_what_they_will_change_their_mind_about() -> None:
    user = ScriptedUser(SLOTS, Goal(WANTED.wanted, at_first={"size": "9"}), PLAIN, Random(0))
    assert user.opening("Shoes, please.") == "Shoes, please. Size 9."
    assert (
        ScriptedUser(SLOTS, WANTED, Mood("open", opens_with=2), Random(0)).opening("Hi.")
        == "Hi. It should be red. Size 7."
    )


def test_a_change_of_mind_comes_with_the_first_answer_whatever_is_asked() -> None:
    goal = Goal(WANTED.wanted, at_first={"size": "9"})
    first, second = replies(["Which colour?", "What size?"], goal)
    assert first == "Actually, I have changed my mind. Size 7. It should be red."
    assert second == "Size 7."
    assert replies(["Hm."], goal) == ["Actually, I have changed my mind. Size 7."]


@pytest.mark.parametrize("refusal", ["7 is not available.", "That is taken. What other size?", "We cannot do that."])
def test_a_second_wish_is_told_when_the_first_cannot_be_had_and_no_sooner(refusal: str) -> None:
    goal = Goal(WANTED.wanted, otherwise={"size": "8"})
    assert replies(["What size?", refusal], goal) == ["Size 7.", "Size 8."]


def test_they_leave_when_their_patience_is_at_its_end() -> None:
    assert replies(["colour", "colour", "colour"], mood=Mood("short", patience=2))[1:] == ["It should be red.", None]


def test_the_same_seed_says_the_same() -> None:
    mood = Mood("chatty", chatter=tuple(f"{n}!" for n in range(99)))
    said = ["colour"] * 5
    assert replies(said, mood=mood) == replies(said, mood=mood) != replies(said, mood=mood, seed=1)


# The environment around a user


class Shop(UserEnv):
    """Sells what it is told to."""

    user: Callable[[], User]

    def __init__(self, user: Callable[[], User] | None = None) -> None:
        self.user = user or (lambda: ScriptedUser(SLOTS, WANTED, Mood("short", patience=2), self.rng))

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task("Shoes, please.")

    def make_user(self) -> User:
        return self.user()

    @tool
    def sell(self, size: int) -> str:
        self.finish(float(size == 7))
        return "sold"


SHOES = Task("Shoes, please.")


def test_what_is_said_goes_to_the_user_and_a_call_to_the_tool() -> None:
    rollout = play(Shop, SHOES, saying("What size?", call("sell", size=7)))
    assert told(rollout, "user") == ["Shoes, please.", "Size 7."]
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.FINISHED, StopReason.STOPPED, 1.0)


def test_the_episode_ends_when_the_user_leaves() -> None:
    rollout = play(Shop, SHOES, lambda messages: "What size?")
    assert (rollout.turns, rollout.status, rollout.reward) == (3, Status.FINISHED, 0.0)


def test_it_can_be_stepped_by_hand() -> None:
    env = Shop()
    env.reset(seed=0)
    observation, _, terminated, *_ = env.step("What size?")
    assert ([m.content for m in observation], terminated, env.user_turns) == (["Size 7."], False, 1)
    env.reset(seed=0)
    assert env.user_turns == 0
    env.finish_reason = "length"
    assert env.step("What si")[2:4] == (False, True)


def test_an_override_of_step_is_async_too() -> None:
    with pytest.raises(ToolDefinitionError, match="write both as `async def`"):

        class Sync(Shop):
            def step(self, action: Any) -> Any:
                return super().step(action)


# A user whom a model plays


def test_a_model_is_told_who_it_is_and_hears_the_assistant_as_its_user() -> None:
    heard: list[Sequence[Message]] = []

    def model(messages: Sequence[Message]) -> str:
        heard.append(messages)
        return "Size 7, I said." if len(messages) < 4 else f"Bye. {GOODBYE}"

    brief = brief_of(SLOTS, Goal(WANTED.wanted, {"size": "9"}, {"colour": "blue"}))
    user = ModelUser(ScriptedAgent(model).session((), 0), brief, "Shoes, please.")
    rollout = play(lambda: Shop(lambda: user), SHOES, saying("What size?", "Anything else?"))
    assert told(rollout, "user") == ["Shoes, please.", "Size 7, I said."]
    assert (rollout.status, rollout.turns) == (Status.FINISHED, 2)
    system, first = heard[0]
    for part in (
        "It should be red. Size 7.",
        "said otherwise (9)",
        "If red cannot be had",
        "by saying: Shoes, please.",
    ):
        assert part in system.content
    assert [(m.role, m.content) for m in heard[1]][1:] == [
        ("user", "What size?"),
        ("assistant", "Size 7, I said."),
        ("user", "Anything else?"),
    ]
    assert first.role == "user"


def test_a_model_that_cannot_be_reached_fails_the_episode_and_is_no_reward() -> None:
    class Gone:
        async def act(self, new_messages: Sequence[Message], /) -> Any:
            raise EngineError("no answer")

    rollout = play(lambda: Shop(lambda: ModelUser(Gone(), "", "")), SHOES, saying("What size?"))
    assert (rollout.status, rollout.reward, rollout.error) == (Status.FAILED, None, "no answer")
