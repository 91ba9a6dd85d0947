"""`ForeignEnv`: episodes that a program of others plays, which reaches the model through an OpenAI-compatible API.

There is no `step`: the program decides what the model is asked. What it asks, and which tokens were sampled, is
recorded on the way (`moonmill.agents.proxy`), and becomes the rollout; `play` says what the episode came to. All else
is as in every environment: tasks, limits, `setup` and `close`, a sandbox, and `@reward` and `@metric` methods, which
may score what was recorded.
"""

from abc import abstractmethod
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from moonmill.blame import error_of
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.calls import settled
from moonmill.envs.returned import UNBOUNDED, as_number
from moonmill.envs.scoring import score
from moonmill.errors import EnvCodeError
from moonmill.types import Message, Rollout, Status, StopReason, Task

UNRECORDED = "~"
"""Behind an episode's key: what is asked with it leaves no tokens in the rollout."""


class Endpoint(Struct, frozen=True):
    """Where the program of one episode reaches the model."""

    url: str
    """`http://127.0.0.1:PORT/v1`: below it are `/chat/completions`, `/completions` and `/models`; at the server's root
    is vLLM's `/inference/v1/generate`."""
    key: str
    """The bearer token: it is the episode's, and worth nothing after it."""
    model: str = "policy"
    """What to call the model."""

    @property
    def root(self) -> str:
        """The server's root."""
        return self.url.removesuffix("/v1")

    @property
    def unrecorded(self) -> "Endpoint":
        """The same model, for what is not to be trained on: an opponent, a user or a judge that it plays."""
        return replace(self, key=self.key + UNRECORDED)


class Outcome(Struct, frozen=True):
    """What an episode came to."""

    reward: float | None = None
    """Added to what `@reward` methods give. None where there are none is unscored; never 0."""
    rewards: dict[str, float] = {}
    """By name, for the log: `reward` is what is trained on."""
    metrics: dict[str, float] = {}
    messages: tuple[Message, ...] = ()
    """The conversation, for people and `@reward` methods: messages, or dicts of what they have. Empty is the longest
    that was recorded."""
    truncated: bool = False
    """A limit of the program's own ended it."""
    stop: StopReason | None = None
    """Why it ended. None is `answered`, or, where it is truncated, the limit that the model's answers have met."""


class ForeignEnv(MultiTurnEnv):
    """An environment whose episodes a program plays: an agent library, or a process of its own.

    Write `tasks` and `play`. `self.task` and `self.rng` are in place in `play`, as they are in a tool.

    Example:
        >>> class Chat(ForeignEnv):
        ...     def tasks(self, split):
        ...         yield Task("What is 6 times 7?", answer="42")
        ...
        ...     async def play(self, task, model, seed):
        ...         async with AsyncOpenAI(base_url=model.url, api_key=model.key) as client:
        ...             said = await client.chat.completions.create(
        ...                 model=model.model, messages=[{"role": "user", "content": task.prompt}]
        ...             )
        ...         return Outcome(reward=float(said.choices[0].message.content == task.answer))
    """

    max_turns = 64
    """Answers of the model after which the episode is truncated, in all its conversations together."""

    @abstractmethod
    def play(self, task: Task, model: Endpoint, seed: int) -> Any:
        """Play an episode; returns its `Outcome`, or None where `@reward` methods say all. May be async.

        What it raises makes the rollout fail, unless the model had met a limit before: then the rollout is truncated.
        At `max_seconds` it is cancelled. It ends what it has started.

        Args:
            task: the problem, as `self.task`.
            model: where to ask. Temperature, top-p, top-k and seed are the run's, whatever a request says.
            seed: decides everything random in the episode.
        """

    def step(self, action: Message | str) -> Any:
        """Not to be called: the program takes the turns."""
        raise EnvCodeError(f"{type(self).__name__} is played by a program (`play`), and cannot be stepped")


def play(env: ForeignEnv, env_id: str, model: Endpoint, seed: int) -> Outcome:
    """Have `env` play its task.

    Raises:
        EnvCodeError: it returned something else than an outcome.
    """
    outcome: object = settled(env, env.play(env.task, model, seed))
    if outcome is None:
        return Outcome()
    if not isinstance(outcome, Outcome):
        raise EnvCodeError(f"{env_id}: play returned {outcome!r:.200}, but should return an Outcome, or None")
    logged = {"messages": outcome.messages, "stop": outcome.stop}
    try:
        read = msgspec.json.decode(msgspec.json.encode(logged), type=Outcome)
    except (TypeError, ValueError) as e:
        raise EnvCodeError(f"{env_id}: play returned an Outcome that no log can be read with: {e}") from e
    return replace(outcome, messages=read.messages, stop=read.stop)


def score_outcome(env: ForeignEnv, env_id: str, rollout: Rollout, outcome: Outcome) -> Rollout:
    """`rollout` with what `outcome` says added to what the environment's own methods say."""
    scored = score(env, env_id, rollout)
    if scored.status is Status.FAILED:
        return scored
    try:
        rewards, metrics = (
            {name: as_number(f"{env_id}: the outcome's {name!r}", value, bounds) for name, value in numbers.items()}
            for numbers, bounds in ((outcome.rewards, env.reward_bounds), (outcome.metrics, UNBOUNDED))
        )
        reward = outcome.reward
        if reward is not None:
            reward = as_number(f"{env_id}: the outcome's reward", reward, env.reward_bounds)
    except EnvCodeError as e:
        return replace(
            scored, status=Status.FAILED, stop_reason=StopReason.SCORING_ERROR, reward=None, error=error_of(e)
        )
    scored = replace(scored, rewards=rewards | scored.rewards, metrics=metrics | scored.metrics)
    if not any(mark.kind == "reward" for mark in env._moonmill_class.marks):
        return replace(
            scored, reward=reward, error=None if reward is not None else f"{env_id}: its outcome has no reward"
        )
    return scored if scored.reward is None else replace(scored, reward=scored.reward + (reward or 0.0))
