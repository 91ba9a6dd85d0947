"""An expert at generated tasks, who reads nothing but what the model is told."""

import re
from collections.abc import Sequence

from moonmill.envs.library.coding.programs import STEPS, Filled, Program
from moonmill.envs.library.coding.steps import Kind, Step
from moonmill.types import Message, ToolCall

_SIGNATURE = re.compile(r"`\w+\((\w+)\)`")
_STEP = re.compile(r"^(?:\d+\. (.+)|What it does: (.+)\.)$", re.MULTILINE)
_PLACES = {"n": r"(?P<n>-?\d+)", "a": "(?P<a>[a-z])", "b": "(?P<b>[a-z])"}


def demonstrate(messages: Sequence[Message]) -> Message:
    """What an expert says next: a script for a `ScriptedAgent`, and what a policy can be warmed up on.

    It tries its function on the examples, and then submits it.

    Args:
        messages: the conversation so far, from the prompt on.
    """
    told = next(m.content for m in messages if m.role == "user")
    solution = solve(told).source
    if messages[-1].role == "tool":
        return _calling(messages, "submit", solution)
    examples = told.partition("Examples:\n")[2].splitlines()
    return _calling(messages, "python", solution + "\n" + "".join(f"assert {example}\n" for example in examples))


def solve(told: str) -> Program:
    """The program that a task's text tells."""
    [kind] = _SIGNATURE.findall(told)[:1]
    steps: list[Filled] = []
    for numbered, single in _STEP.findall(told.partition("Examples:")[0]):
        steps.append(_read(kind, numbered or single))
        kind = steps[-1].step.gives
    return Program(tuple(steps))


def _read(kind: Kind, words: str) -> Filled:
    for step in STEPS:
        if step.takes == kind and (found := _pattern(step).fullmatch(words)):
            values = found.groupdict()
            return Filled(step, int(values.get("n") or 0), values.get("a") or "", values.get("b") or "")
    raise ValueError(f"no step says {words!r}")


def _pattern(step: Step) -> re.Pattern[str]:
    """Of its words. What occurs a second time is the same as at first."""
    parts = re.split(r"\{([nab])\}", step.words)
    seen: set[str] = set()
    pattern = ""
    for index, part in enumerate(parts):
        if index % 2 == 0:
            pattern += re.escape(part)
        else:
            pattern += f"(?P={part})" if part in seen else _PLACES[part]
            seen.add(part)
    return re.compile(pattern)


def _calling(messages: Sequence[Message], name: str, code: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall(f"call-{len(messages)}", name, {"code": code}),))
