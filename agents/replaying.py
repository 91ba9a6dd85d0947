"""Playing an episode again from its record, and saying where it goes otherwise.

The record is a `Rollout`: its task, its seed and what the model said are given to the environment; what comes back is
compared with what is recorded, byte for byte. No model is needed.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from moonmill.agents.agent import Session, Turn
from moonmill.agents.runner import EnvFactory, EpisodeRunner
from moonmill.envs import ToolSpec
from moonmill.envs.differences import Difference, Event, first_difference
from moonmill.errors import ContextFullError, EngineError
from moonmill.types import Message, Rollout, StopReason

_NOT_DECIDED = {
    StopReason.ENGINE_ERROR: "its engine failed",
    StopReason.SANDBOX_ERROR: "its sandbox could not be had, or was lost",
    StopReason.TIME_LIMIT: "its time was up",
    StopReason.PROMPT_TOO_LONG: "its prompt was too long for the model",
}
"""Ends that neither the seed nor what was said decides."""


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


async def replay(recorded: Rollout, factory: EnvFactory) -> Replay:
    """Play `recorded` again in the environment that `factory` makes."""
    turns = len(recorded.turn_rewards)
    if why := _NOT_DECIDED.get(recorded.stop_reason):
        return Replay(recorded.id, turns, recorded.reward, skipped=why)
    runner = EpisodeRunner(recorded.env, factory, _ReplayAgent(recorded))
    seen = await runner.run(
        recorded.task, id=recorded.id, seed=recorded.seed, index=recorded.index, group=recorded.group
    )
    return Replay(recorded.id, turns, recorded.reward, first_difference(events(recorded), events(seen)))


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
    """Says what is recorded, turn by turn, whatever it is told."""

    def __init__(self, recorded: Rollout) -> None:
        self._recorded = recorded

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return _ReplaySession(self._recorded)


class _ReplaySession:
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
    left = len(rollout.turn_rewards)
    for count, message in enumerate(reversed(rollout.messages), 1):
        left -= message.role == "assistant"
        if not left:
            return count
    return 0


def _who(message: Message) -> str:
    return f"what {message.name or 'the tool'} answered" if message.role == "tool" else f"the {message.role}'s message"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
