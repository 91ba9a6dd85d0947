"""An episode as a person reads it."""

import json
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from moonmill.cli.figures import NONE, number
from moonmill.types import Message, Rollout, ToolCall

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def print_rollout(out: Console, rollout: Rollout) -> None:
    """What was said, and how it ended."""
    out.print(f"{rollout.id} ({rollout.task.id or 'task'}{_level(rollout)})", style="bold")
    for message in rollout.messages:
        print_message(out, message)
    for line in outcome(rollout):
        out.print(line)


def print_message(out: Console, message: Message) -> None:
    """One message, under the name of who said it."""
    for line in message_lines(message):
        out.print(Text(line, style=_STYLES[message.role]))


def message_lines(message: Message) -> Iterator[str]:
    """`role: text` for the text and each tool call of a message."""
    if message.reasoning:
        yield f"{message.role} (reasoning): {message.reasoning}"
    if message.content or not message.tool_calls:
        yield f"{message.role}: {message.content}"
    for call in message.tool_calls:
        yield f"{message.role}: {_call(call)}"


def outcome(rollout: Rollout) -> Iterator[str]:
    """Status, reward and what it is made of, versions, faults."""
    reward = "unscored" if rollout.reward is None else f"reward {number(rollout.reward, 3)}"
    yield f"=> {rollout.status}, {rollout.stop_reason}, {reward}, {rollout.turns} turns{_versions(rollout)}"
    parts = [f"{name} {number(value, 3)}" for name, value in (rollout.rewards | rollout.metrics).items()]
    if parts:
        yield f"   {', '.join(parts)}"
    for fault in rollout.tool_faults:
        yield f"   tool fault: {fault.tool or NONE}, {fault.kind}, {fault.count}×: {fault.example}"
    if rollout.error:
        yield f"   error: {rollout.error}"


def _call(call: ToolCall) -> str:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return f"calls {call.name or NONE} {arguments}{f' (malformed: {call.error})' if call.error else ''}"


def _versions(rollout: Rollout) -> str:
    versions = [version for action in rollout.actions for version in action.versions]
    if not versions:
        return ""
    oldest, newest = min(versions), max(versions)
    tokens = f", {rollout.action_tokens} action tokens of {rollout.tokens}"
    if rollout.branches:
        tokens += f" in {1 + len(rollout.branches)} contexts"
    return f", version {oldest}{tokens}" if oldest == newest else f", versions {oldest} to {newest}{tokens}"


def _level(rollout: Rollout) -> str:
    return f", level {rollout.task.level}" if rollout.task.level else ""
