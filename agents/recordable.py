"""What an agent says, as a log can take it: whatever a model may write, an episode goes on and its run too."""

from typing import Any

import msgspec
from msgspec.structs import replace

from moonmill.envs.returned import encodable
from moonmill.types import Message, ToolCall

_DEEPEST = 64
"""How deep lists and objects of a call's arguments may stand in one another."""


def recordable(message: Message) -> Message:
    """The message with text that UTF-8 can say, and calls whose arguments JSON can.

    A model can write half of a surrogate pair as JSON's `\\ud800`, an integer of 30 digits, lists in lists without end.
    The call becomes one that the environment answers with an error.
    """
    return replace(
        message,
        content=encodable(message.content),
        reasoning=None if message.reasoning is None else encodable(message.reasoning),
        tool_calls=tuple(map(_recordable_call, message.tool_calls)),
    )


def _recordable_call(call: ToolCall) -> ToolCall:
    call = replace(call, id=encodable(call.id), name=encodable(call.name))
    try:
        arguments = _plain(call.arguments, _DEEPEST)
        msgspec.msgpack.encode(arguments)  # which takes less than JSON: integers of 64 bits
    except (ValueError, TypeError, OverflowError) as e:
        return replace(call, arguments={}, error=f"the arguments cannot be taken: {e}")
    return replace(call, arguments=arguments, error=None if call.error is None else encodable(call.error))


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if not depth:
        raise ValueError(f"they are nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        return {encodable(key) if isinstance(key, str) else key: _plain(v, depth - 1) for key, v in value.items()}
    return [_plain(v, depth - 1) for v in value]
