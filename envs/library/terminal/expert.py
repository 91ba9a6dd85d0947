"""An expert at jobs in a shell, who reads nothing but what the model is told."""

import re
from collections.abc import Sequence

from moonmill.envs.library.terminal.jobs import FAMILIES, fill
from moonmill.types import Message, ToolCall

_NUMBER = re.compile(r"^\d\. ", re.MULTILINE)


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next: a script for a `ScriptedAgent`, and what a policy can be warmed up on.

    It runs one command for all that is asked, and then says that it is done.

    Args:
        messages: the conversation so far, from the prompt on.
    """
    if messages[-1].role == "tool":
        return Message("assistant", "Done.")
    told = next(m.content for m in messages if m.role == "user")
    command = "\n".join(_command(words) for words in _NUMBER.sub("", told).split("\n"))
    return Message("assistant", tool_calls=(ToolCall(f"call-{len(messages)}", "bash", {"command": command}),))


def _command(words: str) -> str:
    for family in FAMILIES.values():
        if found := _pattern(family.words).fullmatch(words):
            return fill(family.command, found.groupdict())
    raise ValueError(f"no family says {words!r}")


def _pattern(words: str) -> re.Pattern[str]:
    """Of its words. What occurs a second time is the same as at first."""
    parts = re.split(r"\{(\w+)\}", words)
    pattern = ""
    for index, part in enumerate(parts):
        if index % 2 == 0:
            pattern += re.escape(part)
        else:
            pattern += f"(?P={part})" if part in parts[1:index:2] else f"(?P<{part}>[^`]+)"
    return re.compile(pattern)
