"""Write the tables of docs/*.md that stand between `<!-- table: package.module:Class -->` and `<!-- end -->` from the
class itself: the fields of a struct, the values of an enum, the attributes of `MultiTurnEnv`.

    python docs/make_tables.py

What a field means is the docstring under it, or `SAID` here where the code needs none. A test sees that the pages are
up to date.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from enum import EnumType
from importlib import import_module
from pathlib import Path

import msgspec
from make_configuration import docs_of
from msgspec import inspect as info

from moonmill.config_check import describe

PAGES = sorted(Path(__file__).parent.glob("*.md"))
_TABLE = re.compile(r"(<!-- table: (\S+):(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SAID = {
    "StepRecord.step": "Number of the learner step, counted from 1. Null in a line that only tells drops.",
    "StepRecord.version": "The newest version after the step. A step of the critic's warm-up makes none.",
    "StepRecord.turns": "Mean assistant turns of the consumed rollouts.",
    "StepRecord.action_tokens": "Tokens the policy sampled, in the consumed rollouts: what is trained on.",
    "StepRecord.tokens": "All their tokens, prompts and tools' answers included.",
    "Drop.rollout": "Its id.",
    "Drop.reason": "One of the reasons below.",
    "Spans.wall": "All seconds.",
    "Spans.generating": "Those in which an episode was in flight.",
    "Spans.learning": "Those in which the learner was at work.",
    "Spans.both": "Those in which both went on. `both / learning` is the overlap.",
    "Event.time": "Seconds since the epoch.",
    "Event.kind": "One of the kinds below.",
    "Event.data": "What belongs to that kind.",
    "Rollout.id": "The admission number with eight digits.",
    "Rollout.env": "`env.id` of the config.",
    "Rollout.task": "The problem.",
    "Rollout.status": "How it ended, for training.",
    "Rollout.stop_reason": "Why it ended.",
    "Rollout.seed": "Decides everything random in the episode, sampling included.",
    "Rollout.messages": "The whole conversation.",
    "Rollout.segments": "The tokens in the order of the context: observations and actions in turn.",
    "Rollout.branches": "Further contexts of an episode that a program plays, each as `segments`; mostly none.",
    "Rollout.rewards": "What each `@reward` method gave, before its weight.",
    "Rollout.turn_rewards": "What each assistant turn earned.",
    "Rollout.metrics": "What each `@metric` method gave.",
    "Rollout.tool_faults": "What went wrong in its tool calls.",
    "Rollout.timings": "Where its time went.",
    "Rollout.schema_version": "Grows when a field changes its meaning or goes away.",
    "Task.prompt": "A text, or messages.",
    "Task.answer": "For the scorer alone.",
    "Task.id": "Split and number, such as `train-2`, unless the author set one.",
    "Task.split": "What it was drawn from: `train`.",
    "Task.seed": "The task's own seed.",
    "Task.info": "Whatever the author put there.",
    "Message.role": "Who speaks.",
    "Message.content": "The text.",
    "Message.tool_calls": "The calls of an assistant's message.",
    "Message.tool_call_id": "In a tool's message: the call it answers.",
    "Message.name": "In a tool's message: the tool.",
    "Message.reasoning": "What the model thought, where its format keeps that apart.",
    "ToolCall.id": "What the answer refers to.",
    "ToolCall.name": "The tool.",
    "ToolCall.arguments": "An object, or the raw text where it was none.",
    "Observation.tokens": "Token ids: context, never trained on.",
    "Action.tokens": "Token ids, exactly as sampled.",
    "StopReason.MAX_TURNS": "The environment's `max_turns` is reached.",
    "StopReason.TIME_LIMIT": "The environment's `max_seconds` are over.",
    "Timings.started_at": "Seconds since the epoch.",
    "Timings.total": "Seconds of the whole episode.",
    "Timings.generation": "Seconds spent waiting for the model.",
    "Timings.environment": "Seconds in `reset` and `step`, tools included.",
    "Timings.scoring": "Seconds in rewards and metrics.",
    "ToolFault.tool": "The tool's name.",
    "ToolFault.count": "How often.",
    "EvalResult.temperature": "0 is greedy.",
    "EvalResult.by_level": "The same figures of the tasks of each level.",
    "EvalResult.failed": "Rollouts that failed or were unscored.",
    "EvalResult.high": "The interval's upper end.",
    "LevelResult.samples": "Rollouts that were scored.",
    "LevelResult.success": "As of all tasks, and so are the others.",
    "LevelResult.low": "The interval of `success`.",
    "LevelResult.high": "Its upper end.",
    "LevelResult.reward": "Mean reward.",
    "LevelResult.pass_at": "The chances `pass@k`.",
    "Estimate.value": "The mean.",
    "Estimate.high": "The interval's upper end.",
}


def page(path: Path) -> str:
    """The page's text, its tables made anew."""

    def made(found: re.Match[str]) -> str:
        begin, module, name, end = found.groups()
        return f"{begin}{_table(getattr(import_module(module), name))}{end}"

    return _TABLE.sub(made, path.read_text())


def _table(cls: type) -> str:
    [node] = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    documented = docs_of(node)
    titles: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    if isinstance(cls, EnumType):
        titles, rows = ("value", ""), {name: (f"`{value.value}`",) for name, value in cls.__members__.items()}
    elif issubclass(cls, msgspec.Struct):
        titles, rows = ("field", "value", ""), dict(_fields(cls))
    else:
        titles, rows = ("attribute", "type", "default", ""), dict(_attributes(cls, node))
    lines = [titles, ("---",) * len(titles)]
    for name, cells in rows.items():
        written, said = documented.get(name), SAID.get(f"{cls.__name__}.{name}")
        assert not (written and said), f"{cls.__name__}.{name} has a docstring: take it out of SAID"
        lines.append((*cells, written or said or ""))
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, tuple[str, ...]]]:
    described = info.type_info(struct)
    assert isinstance(described, info.StructType)
    for field in described.fields:
        yield field.name, (f"`{field.encode_name}`", _kind(field.type))


def _attributes(cls: type, node: ast.ClassDef) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Those that have a default and are an author's to set."""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and field.value and not (name := ast.unparse(field.target)).startswith("_"):
            default = json.dumps(getattr(cls, name)) if isinstance(getattr(cls, name), str) else getattr(cls, name)
            yield name, (f"`{name}`", f"`{ast.unparse(field.annotation)}`", f"`{default}`")


def _kind(type: info.Type) -> str:
    match type:
        case info.StructType():
            return f"`{type.cls.__name__}`"
        case info.EnumType():
            return f"`{type.cls.__name__}`"
        case info.VarTupleType():
            return f"list of {_kind(type.item_type)}".replace("number", "numbers")
        case info.DictType():
            return f"names with {_kind(type.value_type)}".replace("number", "numbers")
        case info.UnionType():
            return " or ".join(_kind(option) for option in type.types)
        case info.IntType():
            return "whole number"
        case info.FloatType():
            return "number"
        case info.AnyType():
            return "anything"
        case _:
            return describe(type)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path))
