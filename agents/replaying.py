"""Playing an episode again from its record, and saying where it goes otherwise.

The record is a `Rollout`: its task, its seed and what the model said are given to the environment; what comes back is
compared with what is recorded, byte for byte. No model is needed. A program that plays an episode is answered by what
it has asked so far: where that is what is recorded, with the message that stands behind it.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from moonmill.agents.agent import Session, Turn
from moonmill.agents.recording import fingerprints
from moonmill.agents.runner import EnvFactory, EpisodeRunner
from moonmill.envs import ToolSpec
from moonmill.envs.differences import Difference, Event, first_difference
from moonmill.errors import ContextFullError, EngineError
from moonmill.types import Message, Rollout, StopReason

_NOT_DECIDED = {
    StopReason.ENGINE_ERROR: "its agent or its engine failed",
    StopReason.SANDBOX_ERROR: "its sandbox could not be had, or was lost",
    StopReason.TIME_LIMIT: "its time was up",
    StopReason.PROMPT_TOO_LONG: "its prompt was too long for the model",
}
"""Ends that neither the seed nor what was said decides."""
_ABRIDGED = "its program asked more of the model than its messages tell: in several conversations, or aside"


class Replay(Struct, frozen=True):
    """What came of playing a record again."""

    id: str
    turns: int
    """Those that are recorded."""
    reward: float | None
    difference: Difference | None = None
    """Where it first went otherwise; `first` is what is recorded, `second` what was seen."""
    skipped: str = ""
    """Why it was not played: its end cannot be had again."""
    refused: str = ""
    """Why it cannot be played from its record."""


async def replay(recorded: Rollout, factory: EnvFactory) -> Replay:
    """Play `recorded` again in the environment that `factory` makes."""
    done = Replay(recorded.id, _turns(recorded), recorded.reward, skipped=undecided(recorded), refused=untold(recorded))
    if done.skipped or done.refused:
        return done
    agent = _ReplayAgent(recorded)
    runner = EpisodeRunner(recorded.env, factory, agent)
    seen = await runner.run(
        recorded.task, id=recorded.id, seed=recorded.seed, index=recorded.index, group=recorded.group
    )
    if agent.asked:
        seen = replace(seen, messages=agent.asked)
    elif not recorded.turn_rewards and seen.stop_reason is StopReason.ENGINE_ERROR:
        return replace(done, refused=f"its program cannot be answered from a record: {seen.error}")
    return replace(done, difference=first_difference(events(recorded), events(seen)))


def undecided(recorded: Rollout) -> str:
    """Why its end cannot be had again; empty where it can."""
    return _NOT_DECIDED.get(recorded.stop_reason, "")


def untold(recorded: Rollout) -> str:
    """Why the record does not suffice to play it; empty where it does."""
    return _ABRIDGED if recorded.abridged or recorded.branches else ""


def events(rollout: Rollout) -> list[Event]:
    """All of a rollout that its task, its seed and what the model said decide."""
    found: list[Event] = []
    first, turn = len(rollout.messages) - _taken(rollout), 0
    for index, message in enumerate(rollout.messages):
        turn += index >= first and message.role == "assistant"
        found.append((f"turn {turn}, {_who(message)}" if turn else "the prompt", _json(message)))
    found += [(f"turn {n}, its reward", _json(reward)) for n, reward in enumerate(rollout.turn_rewards, 1)]
    found.append(("how it ended", _json((rollout.status, rollout.stop_reason))))
    for kind, values in (("reward", rollout.rewards), ("metric", rollout.metrics)):
        found += [(f"the {kind} {name}", _json(value)) for name, value in values.items()]
    return [*found, ("the whole reward", _json(rollout.reward))]


class _ReplayAgent:
    """Says what is recorded."""

    def __init__(self, recorded: Rollout) -> None:
        self.recorded = recorded
        self.asked: tuple[Message, ...] = ()
        """The first conversation of a program that is not recorded."""

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        # Where a program plays, turns have no rewards of their own.
        return _ReplaySession(self.recorded) if self.recorded.turn_rewards else _ProgramSession(self)


class _ProgramSession:
    """Says what is recorded behind the conversation so far."""

    def __init__(self, agent: _ReplayAgent) -> None:
        self._agent = agent
        self._told: list[Message] = []

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        self._told += new_messages
        recorded, known = self._agent.recorded, len(self._told)
        said = recorded.messages
        if fingerprints(self._told[: len(said)], ()) == fingerprints(said[:known], ()):
            if known < len(said) and said[known].role == "assistant":
                self._told.append(said[known])
                return Turn(said[known])
            if known > len(said) and recorded.stop_reason is StopReason.MAX_TOKENS:
                raise ContextFullError("the model's context was full here")
        self._agent.asked = self._agent.asked or tuple(self._told)
        raise EngineError("the program asks what is not recorded")


class _ReplaySession:
    """Says what is recorded turn by turn, whatever it is told."""

    def __init__(self, recorded: Rollout) -> None:
        said = recorded.messages[len(recorded.messages) - _taken(recorded) :]
        self._recorded = recorded
        self._said = [message for message in said if message.role == "assistant"]
        self._turn = 0

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        recorded, turn = self._recorded, self._turn
        if turn == len(self._said):
            if recorded.stop_reason is StopReason.MAX_TOKENS:
                raise ContextFullError("the model's context was full here")
            raise EngineError("the record has no more turns")
        self._turn += 1
        is_cut = recorded.stop_reason is StopReason.LENGTH and self._turn == len(self._said)
        # An observation and an action for each turn: they count against `max_tokens`.
        segments = recorded.segments[2 * turn : 2 * turn + 2]
        return Turn(self._said[turn], "length" if is_cut else "stop", segments)


def _taken(rollout: Rollout) -> int:
    """Messages from the first turn on: a prompt may show assistants' messages too, and comes before."""
    left = _turns(rollout)
    for count, message in enumerate(reversed(rollout.messages), 1):
        left -= message.role == "assistant"
        if not left:
            return count
    return 0


def _turns(rollout: Rollout) -> int:
    return len(rollout.turn_rewards) or rollout.turns


def _who(message: Message) -> str:
    return f"what {message.name or 'the tool'} answered" if message.role == "tool" else f"the {message.role}'s message"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
