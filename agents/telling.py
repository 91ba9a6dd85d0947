"""Tools told to a model whose chat format does not tell them itself."""

from collections.abc import Sequence

import msgspec

from moonmill.envs import ToolSpec
from moonmill.types import Message


def tell_tools(messages: Sequence[Message], tools: Sequence[ToolSpec], example: str, *, system: bool) -> list[Message]:
    """The messages with the tools described at the head of the system message.

    Args:
        messages: a conversation.
        tools: what is described, each as a line of JSON.
        example: how a call is written.
        system: whether the format has system messages; where it has none, the first message begins with the tools.
    """
    lines = [msgspec.json.encode(tool).decode() for tool in tools]
    told = "\n".join(["You can call these tools:", *lines, "To call one, write:", example])
    if not messages or (system and messages[0].role != "system"):
        return [Message("system" if system else "user", told), *messages]
    first = messages[0]
    return [msgspec.structs.replace(first, content=f"{first.content}\n\n{told}".strip()), *messages[1:]]
