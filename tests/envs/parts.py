"""What the tests of environments share: calls, messages, and a smallest environment."""

from collections.abc import Iterator
from typing import Any

from moonmill import Message, MultiTurnEnv, Task, ToolCall

TASK = Task("go", answer=42)


class OneTask(MultiTurnEnv):
    """The smallest environment: the same task for ever."""

    def tasks(self, split: str) -> Iterator[Task]:
        while True:
            yield TASK


def call(name: str, id: str = "1", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


def says(*calls: ToolCall, text: str = "") -> Message:
    return Message("assistant", text, tool_calls=calls)
