"""Agents that need no model, for tests, demonstrations and benchmarks: a function, and one that calls at random."""

import inspect
from collections.abc import Callable, Sequence
from typing import TypeGuard

from moonmill.agents.agent import Session, Turn
from moonmill.blame import said_of
from moonmill.envs import ToolSpec
from moonmill.envs.checker.player import RandomPlayer
from moonmill.envs.threads import on_a_thread
from moonmill.errors import EngineError, MoonmillError
from moonmill.types import Message, ToolCall

Script = Callable[[Sequence[Message]], Message | str]


class ScriptedAgent:
    """Answers with what `script` makes of the whole conversation so far.

    The script runs on a thread, and those of several episodes at once: it may block, and is left behind when its
    episode is cancelled.

    Args:
        script: given the messages so far, returns the next. Whatever it raises fails its own episode alone.
        name: what errors call it; else the name it was defined with.

    Example:
        >>> agent = ScriptedAgent(lambda messages: f"I read {messages[-1].content}")
    """

    def __init__(self, script: Script, name: str = "") -> None:
        self.script = script
        self.name = name or getattr(script, "__qualname__", repr(script))

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return _ScriptedSession(self)

    def answer(self, messages: tuple[Message, ...]) -> Message:
        """What the script says next, on the thread that this is called on.

        Raises:
            EngineError: it raised something, be it `SystemExit`, or returned what is no message of the assistant.
        """
        try:
            said: object = self.script(messages)  # whatever its type promises
            message = Message("assistant", said) if isinstance(said, str) else said
            if _is_answer(message):
                return message
            if inspect.iscoroutine(message):
                message.close()
            raise EngineError(
                f"the script {self.name} returned {message!r:.200}: expected a text or a Message of the assistant"
            )
        except MoonmillError:
            raise
        except BaseException as e:
            raise EngineError(f"the agent raised {said_of(e)}") from e


class _ScriptedSession:
    def __init__(self, agent: ScriptedAgent) -> None:
        self._agent = agent
        self._messages: list[Message] = []

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        self._messages += new_messages
        message = await on_a_thread(self._agent.answer, tuple(self._messages))
        self._messages.append(message)
        return Turn(message)


def _is_answer(message: object) -> TypeGuard[Message]:
    """Whether it is a message of the assistant, as its type has it: a script is not checked by anyone else."""
    if not isinstance(message, Message) or message.role != "assistant":
        return False
    texts: list[object] = [message.content, message.reasoning or ""]
    calls: tuple[object, ...] = message.tool_calls
    for call in calls:
        if not isinstance(call, ToolCall):
            return False
        texts += [call.id, call.name]
    return all(isinstance(text, str) for text in texts)


class RandomAgent:
    """Knows nothing but the tools' schemas: mostly right calls, some wrong ones, in the end an answer."""

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return _RandomSession(RandomPlayer(tools, seed))


class _RandomSession:
    def __init__(self, player: RandomPlayer) -> None:
        self._player = player

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        return Turn(self._player.say(new_messages))
