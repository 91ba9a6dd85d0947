"""What answers the requests of a program that plays an episode: the policy, token by token and recorded, or any agent.

A `Player` is one agent in one episode, for several conversations at once. It lives on the event loop of the episode.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from moonmill.agents.agent import Agent, Session
from moonmill.agents.engine.chat_shapes import told_arguments
from moonmill.agents.policy import PolicyAgent, appended, is_long
from moonmill.agents.recordable import recordable
from moonmill.agents.recording import Recording, Sampled, fingerprints
from moonmill.envs import ToolSpec
from moonmill.envs.threads import on_a_thread
from moonmill.errors import EngineError
from moonmill.seeding import derive_seed
from moonmill.types import Completion, FinishReason, Message, Segment, Usage


class Wanted(Struct, frozen=True):
    """What a request says of its answer. All else is the run's."""

    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    """Texts of which the first ends the answer, and is no part of it."""


class Said(Struct, frozen=True):
    """An answer, as the program is told it."""

    message: Message
    finish_reason: FinishReason
    prompt_tokens: int = 0
    completion: Completion | None = None
    """None where the agent has no tokens."""
    stop: str | None = None
    """The text that ended it."""


class Player(Protocol):
    """Answers the program of one episode."""

    async def chat(self, number: int, messages: Sequence[Message], tools: tuple[ToolSpec, ...], wanted: Wanted) -> Said:
        """Answer a conversation.

        Args:
            number: of the request, in the episode.
            messages: all of it.
            tools: what is offered.
            wanted: limits.

        Raises:
            PromptTooLongError, ContextFullError: there is no room for an answer.
            MoonmillError: it cannot be had.
        """
        ...

    async def complete(self, number: int, prompt: str | Sequence[int], wanted: Wanted) -> Said:
        """Go on from a text, or from tokens."""
        ...

    @property
    def contexts(self) -> tuple[tuple[Segment, ...], ...]:
        """What was sampled so far, to be trained on."""
        ...

    @property
    def longest(self) -> tuple[Message, ...]:
        """The longest conversation."""
        ...

    @property
    def conversations(self) -> int:
        """How many there are: one that goes on counts once."""
        ...

    @property
    def usage(self) -> Usage | None:
        """What the requests to a chat API took, where it says so."""
        ...


def player_of(agent: Agent, seed: int) -> Player:
    """An agent in an episode; `seed` decides everything random in it."""
    return _PolicyPlayer(agent, seed) if isinstance(agent, PolicyAgent) else _SessionPlayer(agent, seed)


class _PolicyPlayer:
    usage: Usage | None = None  # the contexts tell

    def __init__(self, agent: PolicyAgent, seed: int) -> None:
        self.longest: tuple[Message, ...] = ()
        self._agent = agent
        self._seed = seed
        self._recording = Recording()
        self._answers: dict[bytes, Sampled] = {}
        """By the fingerprint of the conversation that ends with it."""
        self._asked: Counter[tuple[int, ...]] = Counter()

    @property
    def contexts(self) -> tuple[tuple[Segment, ...], ...]:
        return self._recording.contexts()

    @property
    def conversations(self) -> int:
        return len(self.contexts)

    async def chat(self, number: int, messages: Sequence[Message], tools: tuple[ToolSpec, ...], wanted: Wanted) -> Said:
        marks = fingerprints(messages, tools)
        prompt = (
            await on_a_thread(self._prompt, messages, tools, marks)
            if is_long(messages)
            else self._prompt(messages, tools, marks)
        )
        done, stop = await self._sample(prompt, wanted)
        parsed = recordable(self._agent.renderer.parse(done.tokens, prompt, tools))
        message = parsed if stop is None and _is_sound(parsed, tools) else _as_text(parsed, self._text(done, stop))
        answer = self._recording.add(number, prompt, done)
        conversation = (*messages, message)
        self._answers[fingerprints(conversation, tools)[-1]] = answer
        self._see(conversation)
        return Said(message, done.finish_reason, len(prompt), done, stop)

    async def complete(self, number: int, prompt: str | Sequence[int], wanted: Wanted) -> Said:
        renderer = self._agent.renderer
        ids = renderer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        done, stop = await self._sample(ids, wanted)
        self._recording.add(number, ids, done)
        message = Message("assistant", self._text(done, stop))
        self._see((Message("user", prompt if isinstance(prompt, str) else renderer.decode(ids)), message))
        return Said(message, done.finish_reason, len(ids), done, stop)

    def _see(self, conversation: tuple[Message, ...]) -> None:
        if len(conversation) >= len(self.longest):
            self.longest = conversation

    def _prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec], marks: Sequence[bytes]) -> list[int]:
        """The tokens of a conversation: behind those of the longest that it continues, or all anew."""
        renderer = self._agent.renderer
        for known in range(len(messages) - 1, 0, -1):
            answer = self._answers.get(marks[known - 1])
            if answer is None:
                continue
            new = len(messages) - known
            added = appended(renderer, answer.prompt, answer.action.tokens, messages, new, tools)
            if added is not None:
                return [*answer.context, *added]
        return renderer.prompt(messages, tools)

    async def _sample(self, prompt: list[int], wanted: Wanted) -> tuple[Completion, str | None]:
        asked = tuple(prompt)
        self._asked[asked] += 1
        done = await self._agent.sample(
            prompt,
            # By what is asked and not by when: requests at the same time come in any order.
            seed=derive_seed(self._seed, self._asked[asked], *asked),
            session=f"episode-{self._seed:x}",
            opening=self._recording.is_empty,
            max_tokens=wanted.max_tokens,
        )
        return self._cut(done, wanted.stops)

    def _cut(self, done: Completion, stops: Sequence[str]) -> tuple[Completion, str | None]:
        """A completion up to the token that completes the first of `stops`: what is sampled beyond, nobody reads."""
        decode = self._agent.renderer.decode
        met = [stop for stop in stops if stop in decode(done.tokens)]
        if not met:
            return done, None
        ends = range(1, len(done.tokens) + 1)
        end = 1 + bisect_left(ends, True, key=lambda n: any(stop in decode(done.tokens[:n]) for stop in met))
        cut = Completion(done.tokens[:end], done.logprobs[:end], done.versions[:end], "stop")
        text = decode(cut.tokens)
        return cut, min(met, key=lambda stop: (text.find(stop) < 0, text.find(stop)))

    def _text(self, done: Completion, stop: str | None) -> str:
        renderer, tokens = self._agent.renderer, done.tokens
        ended = bool(tokens) and tokens[-1] in renderer.stop_token_ids
        text = renderer.decode(tokens[:-1] if ended else tokens)
        return text if stop is None else text[: text.index(stop)]


class _SessionPlayer:
    """An agent without tokens. A conversation that goes on goes on in its session."""

    contexts: tuple[tuple[Segment, ...], ...] = ()

    def __init__(self, agent: Agent, seed: int) -> None:
        self.longest: tuple[Message, ...] = ()
        self.conversations = 0
        self.usage: Usage | None = None
        self._agent = agent
        self._seed = seed
        self._sessions: dict[bytes, Session | None] = {}
        """By the fingerprint of the conversation so far; None where it was told otherwise than its session knows it."""

    async def chat(self, number: int, messages: Sequence[Message], tools: tuple[ToolSpec, ...], wanted: Wanted) -> Said:
        marks = fingerprints(messages, tools)
        known = next((n for n in range(len(messages) - 1, 0, -1) if marks[n - 1] in self._sessions), 0)
        session = self._sessions.pop(marks[known - 1]) if known else None
        self.conversations += not known
        if session is None:
            session, known = self._agent.session(tools, self._seed), 0
        turn = await session.act(messages[known:])
        if turn.usage is not None:
            self.usage = turn.usage + (self.usage or Usage(0, 0))
        said = recordable(turn.message)
        sound = _is_sound(said, tools)
        message = said if sound else _as_text(said, _in_words(said))
        conversation = (*messages, message)
        self._sessions[fingerprints(conversation, tools)[-1]] = session if sound else None
        if len(conversation) >= len(self.longest):
            self.longest = conversation
        return Said(message, turn.finish_reason)

    async def complete(self, number: int, prompt: str | Sequence[int], wanted: Wanted) -> Said:
        if not isinstance(prompt, str):
            raise EngineError("a program asked for tokens of an agent that has none: take the policy")
        return await self.chat(number, (Message("user", prompt),), (), wanted)


def _is_sound(message: Message, tools: Sequence[ToolSpec]) -> bool:
    """Whether each of its calls is one that a client can make: of a tool that is offered, with an object for it. A
    message with another is told as the text it is."""
    offered = {tool.name for tool in tools}
    return all(call.name in offered and told_arguments(call) is not None for call in message.tool_calls)


def _as_text(message: Message, text: str) -> Message:
    return Message("assistant", text, reasoning=message.reasoning)


def _in_words(message: Message) -> str:
    """What is said in calls as well, of an agent that has no text of them."""
    calls = [json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False) for c in message.tool_calls]
    return "\n".join(filter(None, (message.content, *calls)))
