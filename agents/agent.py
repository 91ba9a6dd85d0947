"""What plays an episode: anything that answers messages with a message.

An `Agent` is shared by many episodes; a `Session` is one agent in one episode and may keep state. An environment does
not know which agent plays it: a script, a person, a chat API, or the policy under training.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from moonmill.envs import ToolSpec
from moonmill.types import FinishReason, Message, Segment, Usage


class Turn(Struct, frozen=True):
    """One answer of an agent."""

    message: Message
    finish_reason: FinishReason = "stop"
    segments: tuple[Segment, ...] = ()
    """What this turn added to the token context: an `Observation` and the sampled `Action`. Empty without tokens."""
    usage: Usage | None = None
    """What the turn took, where it has no tokens and that is known."""


class Session(Protocol):
    """One agent in one episode."""

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        """Answer what came since the last turn: the prompt at first, then tool results or user messages.

        Raises:
            PromptTooLongError: the prompt leaves no room for an action.
            ContextFullError: the conversation has used up the context.
            EngineError: no answer could be had.
        """
        ...


class Agent(Protocol):
    """A player of episodes."""

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        """A session for one episode. `seed` decides everything random in it."""
        ...
