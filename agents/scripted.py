"""Agents that need no model, for tests, demonstrations and benchmarks: a function, and one that calls at random."""

from collections.abc import Callable, Sequence

from moonmill.agents.agent import Session, Turn
from moonmill.envs import ToolSpec
from moonmill.envs.checker.player import RandomPlayer
from moonmill.types import Message

Script = Callable[[Sequence[Message]], Message | str]


class ScriptedAgent:
    """Answers with what `script` makes of the whole conversation so far.

    Example:
        >>> agent = ScriptedAgent(lambda messages: f"I read {messages[-1].content}")
    """

    def __init__(self, script: Script) -> None:
        self.script = script

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return _ScriptedSession(self.script)


class _ScriptedSession:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._messages: list[Message] = []

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        self._messages += new_messages
        answer = self._script(tuple(self._messages))
        message = Message("assistant", answer) if isinstance(answer, str) else answer
        self._messages.append(message)
        return Turn(message)


class RandomAgent:
    """Knows nothing but the tools' schemas: mostly right calls, some wrong ones, in the end an answer."""

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return _RandomSession(RandomPlayer(tools, seed))


class _RandomSession:
    def __init__(self, player: RandomPlayer) -> None:
        self._player = player

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        return Turn(self._player.say(new_messages))
