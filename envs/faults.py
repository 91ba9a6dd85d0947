"""What went wrong in tools: told to the model, and counted for the author.

An ordinary exception in a tool is an observation. It is counted by tool and kind with the place it came from, so that a
bug in an environment cannot hide as bad behaviour of the model. An error of ours (a lost sandbox) is neither: it passes
through and fails the rollout.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from moonmill.blame import is_interruption, own_error, place_of, text_of
from moonmill.envs.returned import encodable, shortened
from moonmill.envs.tools import ToolArgumentsError, UnknownToolError
from moonmill.types import Message, ToolCall, ToolFault

_EXAMPLE_LENGTH = 500
"""Characters of an example that are kept: it goes into every rollout's record."""


class Answer:
    """The answer to one call, while it is being made."""

    def __init__(self, call: ToolCall) -> None:
        self._call = call
        self.content = ""

    def message(self, max_chars: int | None) -> Message:
        content = encodable(shortened(self.content, max_chars))
        return Message("tool", content, tool_call_id=self._call.id, name=self._call.name)


class FaultLog:
    """The faults of one episode."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], ToolFault] = {}

    @property
    def faults(self) -> tuple[ToolFault, ...]:
        return tuple(self._faults.values())

    @contextmanager
    def watch(self, call: ToolCall) -> Iterator[Answer]:
        """Turn what is raised inside into the answer to `call`."""
        answer = Answer(call)
        try:
            yield answer
        except ToolArgumentsError as e:
            answer.content = text_of(e)
            self.count(
                call.name, "unknown_tool" if isinstance(e, UnknownToolError) else "invalid_arguments", answer.content
            )
        except BaseException as e:
            ours = own_error(e)
            if ours is e or is_interruption(e):
                raise
            if ours is not None:
                raise ours from e
            kind = type(e).__name__
            text = text_of(e)
            answer.content = f"error: {kind}: {text}"
            self.count(call.name, kind, f"{text:.{_EXAMPLE_LENGTH}} ({place_of(e)})")

    def count(self, tool: str, kind: str, example: str) -> None:
        """Count a fault; of several of a kind the first is the example."""
        before = self._faults.get((tool, kind))
        self._faults[tool, kind] = (
            msgspec.structs.replace(before, count=before.count + 1)
            if before
            else ToolFault(tool, kind, 1, encodable(example))
        )
