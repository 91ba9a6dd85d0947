"""You are the model: an agent at the terminal.

A line that begins with `/` calls a tool, anything else is the answer:

    /calculate 12 * 34               the argument of a tool that needs but one: all of the text
    /bash "ls -l" timeout=5          what it may be given besides stands behind it, by name
    /convert 3.5 mi                  several arguments in their order, each read as JSON, else as text
    /convert value=3.5 to=mi         or by name
    /convert {"value": 3.5}          or all as one JSON object, taken as it stands
    /help, /tools, /last, /quit      are for you and cost no turn
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import anyio.to_thread

from moonmill.agents.agent import Session, Turn
from moonmill.agents.recording import fingerprints
from moonmill.envs import ToolSpec
from moonmill.envs.docstrings import parse_docstring
from moonmill.types import Message, ToolCall

HINT = "type your answer, or call a tool with /NAME; /help says how, /quit leaves"
_HELP = """A line that does not begin with / is your answer. One that does calls a tool, with its values in their order,
by name, or as JSON; a value with spaces stands in quotes. Where a tool needs but one, that is all that follows:
  /NAME value value        /NAME name=value name=value        /NAME {"name": value}        /NAME all that follows
/tools lists the tools, /last shows again what you were told last, /help shows this, /quit leaves the episode: none of
these costs a turn."""


class UnclearError(ValueError):
    """A line that cannot be read; the text says what to type instead."""


class HumanAgent:
    """A person.

    Args:
        ask: gives the next line, and may block; `EOFError` ends the episode.
        show: takes each new message.
        tell: takes what is meant for the person alone: help, and what was wrong with a line.
        known: tools that the person has been told of; others are told when they are offered.
    """

    def __init__(
        self,
        ask: Callable[[], str],
        show: Callable[[Message], None],
        tell: Callable[[str], None],
        known: Sequence[ToolSpec] = (),
    ) -> None:
        self.ask = ask
        self.show = show
        self.tell = tell
        self.conversation: list[Message] = []
        """The one that the person has seen last, with their own messages."""
        self._known = [*known]

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        for tool in tools:
            if tool not in self._known:
                self._known.append(tool)
                self.tell(next(describe(tool)))
        return _HumanSession(self, tools)


class _HumanSession:
    def __init__(self, agent: HumanAgent, tools: tuple[ToolSpec, ...]) -> None:
        self._agent = agent
        self._tools = {t.name: t for t in tools}
        self._calls = 0
        self._last: Sequence[Message] = ()
        self._conversation: list[Message] = []

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        self._conversation += new_messages
        # A program may send all of it again, in a session of its own.
        seen = _common(self._agent.conversation, self._conversation)
        self._last = self._conversation[seen:]
        self._agent.conversation = [*self._conversation]
        for message in self._last:
            self._agent.show(message)
        while True:
            line = await anyio.to_thread.run_sync(self._agent.ask, abandon_on_cancel=True)
            try:
                message = self._message(line)
            except UnclearError as e:
                self._agent.tell(str(e))
                continue
            for conversation in (self._conversation, self._agent.conversation):
                conversation.append(message)
            return Turn(message)

    def _message(self, line: str) -> Message:
        if not line.strip():
            raise UnclearError(HINT)
        if not line.startswith("/"):
            return Message("assistant", line)
        name, _, rest = line[1:].strip().partition(" ")
        tool = self._tools.get(name)
        if tool is None:
            self._command(name)
        arguments = parse_arguments(rest.strip(), tool) if tool else rest.strip() or {}
        self._calls += 1
        return Message("assistant", tool_calls=(ToolCall(f"call-{self._calls}", name, arguments),))

    def _command(self, name: str) -> None:
        """What is no call: raised to be told, or to leave. A tool of the same name goes first."""
        if name == "quit":
            raise EOFError
        if name == "help":
            raise UnclearError(_HELP)
        if name == "last":
            raise UnclearError("\n".join(f"{message.role}: {message.content}" for message in self._last) or "nothing")
        if name == "tools":
            raise UnclearError("\n".join(line for tool in self._tools.values() for line in describe(tool)) or "none")


def _common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages two conversations have in common at their begin."""
    pairs = zip(fingerprints(one, ()), fingerprints(other, ()), strict=False)
    return sum(a == b for a, b in pairs)  # Each is of all messages up to it.


def describe(tool: ToolSpec) -> Iterator[str]:
    """How a tool is called, what it does, and its parameters."""
    summary = parse_docstring(tool.description).summary
    yield f"{usage(tool)}: {summary}" if summary else usage(tool)
    yield from parameter_lines(tool)


def usage(tool: ToolSpec) -> str:
    """A call with its parameters left open: `/convert value=… to=…`; `[timeout=…]` need not be given."""
    needed = tool.parameters.get("required", ())
    names = (f"{name}=…" if name in needed else f"[{name}=…]" for name in tool.parameters.get("properties", {}))
    return " ".join((f"/{tool.name}", *names))


def parameter_lines(tool: ToolSpec) -> Iterator[str]:
    """One line a parameter: whether it is optional, its JSON schema, what it means, if only by the tool's docstring."""
    said = parse_docstring(tool.description).args
    for name, schema in tool.parameters.get("properties", {}).items():
        optional = "" if name in tool.parameters.get("required", ()) else " (optional)"
        kind = {key: value for key, value in schema.items() if key not in ("description", "title")}
        text = kind["type"] if set(kind) == {"type"} else json.dumps(kind, ensure_ascii=False)
        yield f"  {name}{optional}: {', '.join(filter(None, (text, schema.get('description', said.get(name)))))}"


def parse_arguments(text: str, tool: ToolSpec) -> dict[str, Any]:
    """The arguments a person typed after a tool's name.

    Raises:
        UnclearError: they cannot be read, or one that is needed is missing.
    """
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    if text.startswith("{"):
        value = _json_or_text(text)
        if isinstance(value, dict):
            return value
        if len(properties) != 1:
            raise UnclearError(f"this begins like a JSON object but is none; type {usage(tool)}")
    arguments = _typed(text, tool, properties)
    if missing := [name for name in tool.parameters.get("required", ()) if name not in arguments]:
        raise UnclearError(f"{' and '.join(missing)} missing; type {usage(tool)}")
    return arguments


def _typed(text: str, tool: ToolSpec, properties: Mapping[str, Any]) -> dict[str, Any]:
    """By name, or in their order, or both; all of the text where but one is needed."""
    single = _single(tool, properties)
    words = _words(text, tool, strict=single is None)
    named = [word.partition("=")[0] in properties and "=" in word for word in words]
    if single is not None and text and not all(named):
        return _of_single(text, single, properties)
    in_order = named.index(True) if True in named else len(words)
    if not all(named[in_order:]):
        raise UnclearError(f"a value without a name stands behind one with a name; type {usage(tool)}")
    if in_order > len(properties):
        names = f"values for {', '.join(properties)}" if properties else "no values"
        raise UnclearError(
            f"/{tool.name} takes {names}, and these are {in_order} (a value with spaces stands in quotes); type "
            f"{usage(tool)}"
        )
    pairs = [*zip(properties, words[:in_order], strict=False)]
    pairs += [(name, value) for name, _, value in (word.partition("=") for word in words[in_order:])]
    if len(dict(pairs)) < len(pairs):
        raise UnclearError(f"a parameter has two values; type {usage(tool)}")
    return {name: _value(value, properties[name]) for name, value in pairs}


def _single(tool: ToolSpec, properties: Mapping[str, Any]) -> str | None:
    """The one parameter that a tool needs, where all of a text can be it; None where there is none such."""
    needed = [name for name in tool.parameters.get("required", ()) if _may_be_text(properties.get(name, {}))]
    needed = [*properties] if len(properties) == 1 else needed
    return needed[0] if len(needed) == 1 >= len(tool.parameters.get("required", ())) else None


def _of_single(text: str, single: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """All of the text is one value, but for what stands at its end by another name."""
    others = "|".join(re.escape(name) for name in properties if name != single)
    behind = re.search(rf"(?:\s(?:{others})=\S+)+$", text) if others else None
    value = (text[: behind.start()] if behind else text).strip()
    if quoted := re.fullmatch(r"""(["'])(.*)\1""", value, re.DOTALL):
        value = quoted[2] if quoted[1] not in quoted[2] else value
    pairs = [word.partition("=") for word in behind[0].split()] if behind else []
    return {single: _value(value, properties[single])} | {n: _value(v, properties[n]) for n, _, v in pairs}


def _words(text: str, tool: ToolSpec, strict: bool) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        if strict:
            raise UnclearError(f"a quote is not closed; type {usage(tool)}") from None
        return [text]


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """`text` as the schema wants it: where it may be a string it stays as typed, all else is read as JSON."""
    return text if _may_be_text(schema, text) else _json_or_text(text)


def _may_be_text(schema: Mapping[str, Any], text: str = "") -> bool:
    options = [schema, *schema.get("anyOf", ())]
    return any(o.get("type") == "string" or text in o.get("enum", ()) for o in options)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
