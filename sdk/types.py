"""The data that travels between environments, agents and the trainer.

Every type is a frozen `msgspec.Struct`: cheap to make, safe to share between tasks, and the same object after a round
trip through JSON or msgpack. Nothing here does I/O or knows a clock.

`SCHEMA_VERSION` is written into every rollout. It grows by one when a field changes its meaning or goes away; a field
that is added with a default does not change it, so old logs stay readable.
"""

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

SCHEMA_VERSION = 1

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """One call the model made. `arguments` is the raw text where it could not be read as a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | str = {}
    error: str | None = None
    """Why the call could not be parsed; the environment answers such a call with this error."""


class Message(Struct, frozen=True, omit_defaults=True):
    """One chat message, in the shape chat APIs use."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


class Task(Struct, frozen=True, omit_defaults=True):
    """One problem. `answer` is for the scorer alone: it is never shown to the model.

    `id`, `split` and `seed` are filled in by the `Taskset` that yields the task, unless the author set them.
    """

    prompt: str | tuple[Message, ...]
    answer: Any = None
    id: str = ""
    split: str = ""
    seed: int = 0
    level: str = ""
    """The difficulty, as the environment names it; evaluation reports success by level."""
    info: dict[str, Any] = {}

    def messages(self) -> tuple[Message, ...]:
        """The prompt as messages."""
        if isinstance(self.prompt, str):
            return (Message("user", self.prompt),)
        return self.prompt


class Action(Struct, frozen=True, tag="action", tag_field="kind"):
    """Tokens the policy sampled in one turn, exactly as sampled. All three have shape `[tokens]`."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token under the distribution it was drawn from (after temperature, top-p and top-k)."""
    versions: tuple[int, ...]
    """The policy version that sampled each token."""


class Observation(Struct, frozen=True, tag="observation", tag_field="kind"):
    """Tokens the environment gave: context, never trained on."""

    tokens: tuple[int, ...]


Segment = Action | Observation


class Status(StrEnum):
    """How a rollout ended, as far as training is concerned."""

    FINISHED = "finished"
    """The environment ended it."""
    TRUNCATED = "truncated"
    """A limit ended it."""
    FAILED = "failed"
    """Infrastructure or the environment's own code broke. Counted and shown, never trained on."""


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    """The model made no tool call: its message is the answer."""
    STOPPED = "stopped"
    """The environment ended it: a tool, a `@stop` method or `step` said so."""
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    """The episode's token limit, or the model's context, is used up."""
    LENGTH = "length"
    """A turn was cut by the sampling limit: the model had not ended it."""
    TIME_LIMIT = "time_limit"
    PROMPT_TOO_LONG = "prompt_too_long"
    """The prompt leaves no room for a single action token."""
    ENGINE_ERROR = "engine_error"
    """The engine, or the way to it, failed for longer than the retries cover."""
    ENV_ERROR = "env_error"
    """The environment's own code raised outside a tool."""
    SANDBOX_ERROR = "sandbox_error"
    """A sandbox could not be had, or was lost."""
    SCORING_ERROR = "scoring_error"
    """A reward raised, or was not a finite number within the declared bounds."""


class Timings(Struct, frozen=True, omit_defaults=True):
    """Seconds spent in one episode. `started_at` is seconds since the epoch."""

    started_at: float = 0.0
    total: float = 0.0
    generation: float = 0.0
    environment: float = 0.0
    scoring: float = 0.0
    sandbox: float = 0.0
    """Waiting for sandboxes to be had, which is part of none of the others."""


class ToolFault(Struct, frozen=True, omit_defaults=True):
    """Exceptions of one kind that one tool raised in one episode. The model was told; this is for the author."""

    tool: str
    kind: str
    """The exception's class, or `invalid_arguments` and `unknown_tool` for calls the model got wrong."""
    count: int
    example: str
    """Message and place of the first one."""


class Usage(Struct, frozen=True):
    """Tokens that requests to a model took, as they are paid for: each request sends its whole context."""

    prompt: int
    """Tokens sent, summed over the requests."""
    completion: int
    """Tokens sampled."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.prompt + other.prompt, self.completion + other.completion)


class Rollout(Struct, frozen=True, omit_defaults=True):
    """One finished episode.

    `segments` alternates `Observation` and `Action`, in the order of the context; agents without tokens (scripted,
    human, chat API) leave it empty. `turn_rewards[i]` belongs to the i-th assistant turn, and so to the i-th action.

    An episode that a program plays may have several contexts: `branches` are those besides `segments`. What one shares
    with an earlier one is `Observation` in it, so that every sampled token is an action exactly once.
    """

    id: str
    env: str
    task: Task
    status: Status
    stop_reason: StopReason
    index: int = 0
    """Admission number: the position in the run's deterministic order of episodes."""
    seed: int = 0
    group: str | None = None
    """Rollouts of one task that are compared with one another share a group."""
    messages: tuple[Message, ...] = ()
    segments: tuple[Segment, ...] = ()
    branches: tuple[tuple[Segment, ...], ...] = ()
    reward: float | None = None
    """Weighted sum of `rewards` plus the sum of `turn_rewards`. None means unscored: never trained on, never 0."""
    unshaped: float | None = None
    """`reward` as it was before wrappers changed rewards, where one has: what tells a success."""
    rewards: dict[str, float] = {}
    turn_rewards: tuple[float, ...] = ()
    metrics: dict[str, float] = {}
    tool_faults: tuple[ToolFault, ...] = ()
    error: str | None = None
    """Why it failed or is unscored; what is longer than 3,000 characters is without its middle."""
    usage: Usage | None = None
    """What the requests to a chat API took, where it says so; of others `segments` tell."""
    timings: Timings = Timings()
    abridged: bool = False
    """A program has asked more of the agent than `messages` tell: in several conversations, or aside; or tells them
    itself."""
    schema_version: int = SCHEMA_VERSION

    @property
    def contexts(self) -> tuple[tuple[Segment, ...], ...]:
        """`segments` and `branches`, those in which something was sampled: the sequences to train on."""
        return tuple(c for c in (self.segments, *self.branches) if any(isinstance(s, Action) and s.tokens for s in c))

    @property
    def actions(self) -> tuple[Action, ...]:
        """Of all contexts, one after another."""
        return tuple(s for context in (self.segments, *self.branches) for s in context if isinstance(s, Action))

    @property
    def action_tokens(self) -> int:
        return sum(len(a.tokens) for a in self.actions)

    @property
    def tokens(self) -> int:
        """Of all contexts: what several share counts in each."""
        return sum(len(s.tokens) for context in (self.segments, *self.branches) for s in context)

    @property
    def turns(self) -> int:
        """How many assistant turns were taken; those that the task's prompt shows are none."""
        told = self.messages, self.task.messages()
        said, shown = (sum(m.role == "assistant" for m in messages) for messages in told)
        return max(0, said - shown)

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version among the action tokens, None where nothing was sampled."""
        return min((min(a.versions) for a in self.actions if a.versions), default=None)

    @property
    def judged(self) -> float | None:
        """What tells a success: the reward, before wrappers changed it. None means unscored."""
        return self.reward if self.reward is None or self.unshaped is None else self.unshaped

    def final_text(self) -> str:
        """The text of the last assistant message, empty where there is none."""
        return next((m.content for m in reversed(self.messages) if m.role == "assistant"), "")

    def final_number(self) -> float:
        """The last number in the last assistant message, `nan` where there is none."""
        found = _NUMBER.findall(self.final_text())
        return float(found[-1].replace(",", "")) if found else float("nan")


FinishReason = Literal["stop", "length", "abort"]

COOLEST = 1e-5
"""Lowest temperature besides 0: logits divided by one much lower are no float32 any more."""


class Sampling(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How tokens are drawn. `temperature: 0` is greedy; `top_k: 0` keeps every token."""

    temperature: Annotated[float, Meta(ge=0)] = 1.0
    """What logits are divided by. Training needs one above 0."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Only the likeliest tokens that together have this probability are drawn from."""
    top_k: Annotated[int, Meta(ge=0)] = 0
    """Only so many of the likeliest tokens are drawn from; 0 is all."""
    max_tokens: Annotated[int, Meta(ge=1)] = 256
    """Limit of one turn, in tokens."""


class Completion(Struct, frozen=True, omit_defaults=True):
    """What the engine sampled for one request. The three tuples have shape `[tokens]`."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason
