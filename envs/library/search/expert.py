"""An expert at questions about a made-up world, who reads nothing but what the model is told."""

import re
from collections.abc import Sequence

from moonmill.envs.library.search.world import RELATIONS
from moonmill.types import Message, ToolCall

_FOUND = re.compile(r"^\[(.+?)\]", re.MULTILINE)
_NAME = r"(\d+|[A-Z]\w+(?: [A-Z]\w+)?)"


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next: a script for a `ScriptedAgent`, and what a policy can be warmed up on.

    For each fact it searches for the subject, and then reads what was found, all of it at once.

    Args:
        messages: the conversation so far, from the prompt on.
    """
    told = next(m.content for m in messages if m.role == "user").removeprefix("What is the ").removesuffix("?")
    *outer, innermost = told.split(" of the ")
    first, _, subject = innermost.partition(" of ")
    read = " ".join(m.content for m in messages if m.role == "tool")
    for relation in (first, *reversed(outer)):
        found = _look_up(relation, subject, read)
        if found is None:
            return _search_or_read(messages, f"{relation} {subject}")
        subject = found
    return Message("assistant", subject)


def _look_up(name: str, subject: str, text: str) -> str | None:
    """What the relation of a subject leads to, as far as it has been read."""
    [relation] = [r for r in RELATIONS if r.name == name]
    for sentence in (relation.told, relation.told_there):
        pattern = re.escape(sentence).replace(r"\{s\}", re.escape(subject)).replace(r"\{o\}", _NAME)
        if sentence and (found := re.search(rf"\b{pattern}", text)):
            return found[1]
    return None


def _search_or_read(messages: Sequence[Message], query: str) -> Message:
    """Search for the query, or, where that was done, read what was found and has not been read."""
    calls = [call for message in messages for call in message.tool_calls]
    last = [call for call in calls if call.name == "search"][-1:]
    if not last or last[0].arguments != {"query": query, "k": 10}:
        return _calling(messages, [("search", {"query": query, "k": 10})])
    answer = next(m.content for m in messages if m.tool_call_id == last[0].id)
    done = [call.arguments for call in calls if call.name == "read"]
    unread = [{"document": found} for found in _FOUND.findall(answer) if {"document": found} not in done]
    return _calling(messages, [("read", arguments) for arguments in unread]) if unread else Message("assistant", "?")


def _calling(messages: Sequence[Message], calls: Sequence[tuple[str, dict[str, object]]]) -> Message:
    made = (ToolCall(f"call-{len(messages)}-{i}", *call) for i, call in enumerate(calls))
    return Message("assistant", tool_calls=tuple(made))
