"""Tools told to a model whose chat format does not tell them itself, and what is to be said where nobody does."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from moonmill.agents.compact import bare_argument
from moonmill.agents.shapes import tool_dicts
from moonmill.envs import ToolSpec
from moonmill.types import Message

if TYPE_CHECKING:
    from moonmill.agents.rendering import TurnRenderer


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


def warning_of_untold(renderer: "TurnRenderer", tools: Sequence[ToolSpec], env_id: str) -> str:
    """What to warn of where an environment has tools that its model hears nothing of; empty where it has none.

    A model is told its tools by its format or by us, or knows them from training, as its folder says: tools of the same
    name and arguments. Where a call is a bare text (`bare_argument`), the tool's name is no part of it, and may differ.
    """
    bare = bare_argument(tool_dicts(tools)) is not None
    untold = [] if renderer.tells_tools else [tool for tool in tools if not _knows(renderer.knows_tools, tool, bare)]
    if not untold:
        return ""
    first = msgspec.json.encode({untold[0].name: _arguments(untold[0])}).decode()
    return (
        f"{env_id} has tools that the model is told nothing of: {', '.join(tool.name for tool in untold)}. Its chat "
        f"format ({renderer.name}) shows none: take a model whose format does, or, where this one was trained on them, "
        f'say so in the moonmill.json of its folder, as "knows_tools": {first}'
    )


def _knows(known: Mapping[str, Sequence[str]], tool: ToolSpec, bare: bool) -> bool:
    return any((bare or name == tool.name) and {*names} == {*_arguments(tool)} for name, names in known.items())


def _arguments(tool: ToolSpec) -> list[str]:
    return [*tool.parameters.get("properties", ())]
