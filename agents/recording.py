"""What a program has asked of the model in one episode, as contexts to train on. A state machine without I/O.

What always holds: every token that was sampled is an `Action` exactly once, with what was sampled of it untouched. A
prompt that begins with a recorded context continues it; any other begins a context of its own. So an edited, shortened
or summarised history forks a branch, and is never silently trained on as something else.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from moonmill.envs import ToolSpec
from moonmill.types import Action, Completion, Message, Observation, Segment, ToolCall


class Sampled(Struct, frozen=True):
    """One answer of the model."""

    number: int
    """In the order in which they were asked for."""
    prompt: tuple[int, ...]
    action: Action
    parent: "Sampled | None"
    """The answer whose context the prompt continues."""

    @property
    def context(self) -> tuple[int, ...]:
        """Token ids, those sampled included."""
        return self.prompt + self.action.tokens

    @property
    def length(self) -> int:
        """Of its context, in tokens."""
        return len(self.prompt) + len(self.action.tokens)

    def is_begin_of(self, tokens: tuple[int, ...]) -> bool:
        """Whether its context stands at their begin."""
        at = len(self.prompt)
        return tokens[:at] == self.prompt and tokens[at : self.length] == self.action.tokens


class Recording:
    """The model's answers in one episode."""

    def __init__(self) -> None:
        self._answers: list[Sampled] = []

    @property
    def is_empty(self) -> bool:
        return not self._answers

    def add(self, number: int, prompt: Sequence[int], done: Completion) -> Sampled:
        """Take an answer; what it continues is told by its tokens."""
        before = tuple(prompt)
        action = Action(done.tokens, done.logprobs, done.versions)
        # The longest, which a conversation that goes on continues; of several that sampled the same, the newest.
        longest_first = sorted(self._answers, key=lambda a: (-a.length, -a.number))
        parent = next((a for a in longest_first if a.is_begin_of(before)), None)
        answer = Sampled(number, before, action, parent)
        self._answers.append(answer)
        return answer

    def contexts(self) -> tuple[tuple[Segment, ...], ...]:
        """One for each answer that nothing continues, in their order. Each ends with an action of its own."""
        answers = sorted(self._answers, key=lambda a: a.number)
        continued = {a.parent.number for a in answers if a.parent is not None}
        told: set[int] = set()
        return tuple(_segments(_path(leaf), told) for leaf in answers if leaf.number not in continued)


def _path(leaf: Sampled) -> list[Sampled]:
    path = [leaf]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    return path[::-1]


def _segments(path: Sequence[Sampled], told: set[int]) -> tuple[Segment, ...]:
    """A context. What is in `told` stands in an earlier one as actions, and is an observation here; adds to it."""
    segments: list[Segment] = []
    observed: list[int] = []
    at = 0
    for answer in path:
        observed += answer.prompt[at:]
        at = answer.length
        if answer.number in told:
            observed += answer.action.tokens
            continue
        told.add(answer.number)
        segments += [Observation(tuple(observed)), answer.action]
        observed = []
    return tuple(segments)


def fingerprints(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[bytes]:
    """Of the conversation up to each message: equal where a client has sent back what it was told.

    Clients drop reasoning, write JSON in their own way, and strip what the model said; that makes no other
    conversation.
    """
    state = hashlib.blake2b(msgspec.json.encode([(t.name, t.description, t.parameters) for t in tools]), digest_size=16)
    found = []
    for message in messages:
        state.update(msgspec.json.encode(_essence(message), order="sorted"))
        found.append(state.digest())
    return found


def _essence(message: Message) -> list[Any]:
    said = message.role == "assistant"
    content = message.content.strip() if said else message.content
    return [message.role, content, [_call(c) for c in message.tool_calls], message.tool_call_id]


def _call(call: ToolCall) -> list[Any]:
    return [call.id, call.name, call.arguments]
