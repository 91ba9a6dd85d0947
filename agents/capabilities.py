"""What a chat format can do, found by trying it on small conversations."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from moonmill.envs import ToolSpec
from moonmill.errors import RenderError
from moonmill.types import Message, ToolCall

if TYPE_CHECKING:
    from moonmill.agents.rendering import TurnRenderer

_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PROBE = (ToolSpec("probe_tool", "A tool to try the format with.", _SCHEMA),)
_QUESTION = (Message("user", "delta"),)
_CALL = ToolCall("call00000", "probe_tool", {"text": "alpha"})
_SECOND = ToolCall("call00001", "probe_tool", {"text": "beta"})
_RESULT = Message("tool", "gamma", tool_call_id="call00000", name="probe_tool")
_THOUGHTS = ("<think>\nalpha\n</think>\n\nbeta", "alpha\n</think>\n\nbeta", "<|channel>thought\nalpha<channel|>beta")
"""How the formats that drop a thought when they render it have it written."""


class Capabilities(Struct, frozen=True):
    """What a format can do."""

    system: bool
    """It has system messages."""
    tools: bool
    """Calls are told from text."""
    tells_tools: bool
    """It shows the model its tools by itself."""
    parallel_calls: bool
    """A turn can have more than one call."""
    reasoning: bool
    """What the model thinks is kept apart from what it says."""
    turns: bool
    """A conversation can go on behind a turn that was sampled."""
    stable: bool
    """A conversation rendered at once has the tokens of one that grew turn by turn."""

    def __str__(self) -> str:
        can = {
            "system messages": self.system,
            "tools": self.tools,
            "parallel calls": self.parallel_calls,
            "reasoning": self.reasoning,
        }
        return ", ".join(name if has else f"no {name}" for name, has in can.items())


def capabilities_of(renderer: "TurnRenderer") -> Capabilities:
    """Try everything once."""
    tells = _tells(renderer, _QUESTION, "probe_tool", PROBE)
    tools = _calls(renderer, (_CALL,)) == (_CALL,)
    return Capabilities(
        system=_tells(renderer, (Message("system", "omega"), *_QUESTION), "omega"),
        tools=tools,
        tells_tools=tells,
        parallel_calls=tools and _calls(renderer, (_CALL, _SECOND)) == (_CALL, _SECOND),
        reasoning=_reasoning(renderer),
        turns=_turns(renderer, tools),
        stable=_stable(renderer, tools),
    )


def say(
    renderer: "TurnRenderer",
    history: Sequence[Message],
    message: Message,
    tools: Sequence[ToolSpec] = (),
    then: Sequence[Message] = (),
) -> list[int]:
    """The tokens of a turn in which a policy says `message` after `history`, up to the one that ends it.

    Args:
        renderer: the format.
        history: the messages before.
        message: the assistant's.
        tools: those of the conversation.
        then: what follows. Some formats end a turn with the token that opens it.

    Raises:
        RenderError: the format cannot write the message.
    """
    prompt = renderer.render(history, tools, open_turn=True)
    whole = renderer.render([*history, message], tools)
    if whole[: len(prompt)] == prompt:
        said = whole[len(prompt) :]
    else:
        said = _behind_thought(renderer, prompt, whole, history, message, tools)
    stops = renderer.stop_token_ids
    end = next((n for n, token in enumerate(said) if token in stops), None)
    if end is not None:
        return said[: end + 1]
    longer = renderer.render([*history, message, *then], tools) if then else whole
    behind = [token for token in longer[len(whole) : len(whole) + 1] if token in stops]
    return [*said, *(behind or stops[:1])]


def _behind_thought(
    renderer: "TurnRenderer",
    prompt: list[int],
    whole: list[int],
    history: Sequence[Message],
    message: Message,
    tools: Sequence[ToolSpec],
) -> list[int]:
    """A turn in a format whose prompt opens a thought, which is not in what it renders: it is ended first.

    What follows is what the turn has behind the header that is in the prompt too, or all of it with the header of a new
    message. The right one is that which is read as the message.
    """
    same = next((n for n, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(whole))
    bodies = (whole[same:], whole[len(renderer.render(history, tools)) :])
    thought = message.reasoning or ""
    for lead in (renderer.encode(f"{thought}<|end|>"), renderer.encode(f"{thought}\n</think>\n\n")):
        for body in bodies:
            read = renderer.parse([*lead, *body], prompt, tools)
            calls = [call.name for call in read.tool_calls]
            if read.content == message.content and calls == [call.name for call in message.tool_calls]:
                return [*lead, *body]
    return bodies[0]


def _tells(renderer: "TurnRenderer", messages: Sequence[Message], text: str, tools: Sequence[ToolSpec] = ()) -> bool:
    try:
        return text in renderer.decode(renderer.render(messages, tools, open_turn=True))
    except RenderError:
        return False


def _calls(renderer: "TurnRenderer", calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """The calls that are read from a turn that makes `calls`, their ids aside."""
    try:
        said = say(renderer, _QUESTION, Message("assistant", tool_calls=calls), PROBE)
        prompt = renderer.render(_QUESTION, PROBE, open_turn=True)
    except RenderError:
        return ()
    read = renderer.parse(said, prompt, PROBE).tool_calls
    return tuple(ToolCall(mine.id, c.name, c.arguments, c.error) for mine, c in zip(calls, read, strict=False))


def _reasoning(renderer: "TurnRenderer") -> bool:
    tries = [renderer.encode(text) for text in _THOUGHTS]
    try:
        prompt = renderer.render(_QUESTION, open_turn=True)
        tries.append(say(renderer, _QUESTION, Message("assistant", "beta", reasoning="alpha")))
    except RenderError:
        return False
    read = [renderer.parse(completion, prompt) for completion in tries]
    return any(message.reasoning == "alpha" and message.content == "beta" for message in read)


def _turns(renderer: "TurnRenderer", tools: bool) -> bool:
    spec = PROBE if tools else ()
    try:
        prompt = renderer.render(_QUESTION, spec, open_turn=True)
    except RenderError:
        return False
    following = [(Message("user", "epsilon"),), *([(_RESULT,)] if tools else [])]
    return all(renderer.extend(prompt, [renderer.stop_token_ids[0]], new, spec) is not None for new in following)


def _stable(renderer: "TurnRenderer", tools: bool) -> bool:
    spec = PROBE if tools else ()
    turns: list[tuple[Message, tuple[Message, ...]]] = [
        (Message("assistant", "beta"), (Message("user", "epsilon"),)),
        (Message("assistant", "zeta"), (Message("user", "eta"),)),
    ]
    if tools:
        turns.insert(0, (Message("assistant", tool_calls=(_CALL,)), (_RESULT,)))
    history: list[Message] = [*_QUESTION]
    try:
        context = renderer.render(history, spec, open_turn=True)
        for said, new in turns:
            completion = say(renderer, history, said, spec, new)
            context = [*context, *completion, *(renderer.extend(context, completion, new, spec) or ())]
            history += [said, *new]
        return context == renderer.render(history, spec, open_turn=True)
    except RenderError:
        return False
