"""An agent that is a function: for tests, demonstrations and benchmarks, where no model is wanted."""

from collections.abc import Callable, Sequence

from moonmill.agents.agent import Session, Turn
from moonmill.envs import ToolSpec
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
