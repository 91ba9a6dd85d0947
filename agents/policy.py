"""The agent under training: token-in, token-out.

The token context of an episode only ever grows: the prompt is rendered once, sampled tokens are kept as sampled, and
each observation is appended behind them. Nothing that was sampled is rendered again.
"""

from collections.abc import Sequence

from moonmill.agents.agent import Session, Turn
from moonmill.agents.client import InferenceClient
from moonmill.agents.rendering import TurnRenderer
from moonmill.envs import ToolSpec
from moonmill.envs.threads import on_a_thread
from moonmill.errors import ContextFullError, PromptTooLongError, RenderError
from moonmill.seeding import derive_seed
from moonmill.types import Action, Completion, Message, Observation, Sampling

_SHORT_CHARS = 4000
"""A text up to this long is made tokens on the event loop, in milliseconds; a longer one on a thread."""


class PolicyAgent:
    """Plays episodes with the engine behind `client`.

    Args:
        client: the way to the engine; its version is the policy's.
        renderer: messages to tokens and back.
        sampling: how tokens are drawn.
        max_length: the longest context in tokens.
    """

    def __init__(self, client: InferenceClient, renderer: TurnRenderer, sampling: Sampling, max_length: int) -> None:
        self.client = client
        self.renderer = renderer
        self.sampling = sampling
        self.max_length = max_length

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return _PolicySession(self, tools, seed)

    async def sample(
        self, prompt: Sequence[int], *, seed: int, session: str, opening: bool, max_tokens: int | None = None
    ) -> Completion:
        """Sample what comes behind `prompt`.

        Args:
            prompt: token ids.
            seed: of this completion.
            session: names the episode, whose completions stay on one engine.
            opening: nothing of `prompt` was sampled.
            max_tokens: a lower limit than the run's.

        Raises:
            PromptTooLongError: there is no room for a token, and the prompt is the episode's first.
            ContextFullError: there is none any more.
            EngineError: the engine cannot be reached, or refuses.
        """
        room = self.max_length - len(prompt)
        if room < 1 and opening:
            raise PromptTooLongError(
                f"the prompt has {len(prompt)} tokens, but the context has {self.max_length} and an action needs at "
                "least one: raise model.max_length or shorten the task"
            )
        if room < 1:
            raise ContextFullError(f"the conversation has {len(prompt)} tokens of {self.max_length}")
        sampling = self.sampling
        limit = min(room, sampling.max_tokens, max_tokens or sampling.max_tokens)
        return await self.client.complete(
            prompt,
            Sampling(sampling.temperature, sampling.top_p, sampling.top_k, limit),
            seed=seed,
            stop_token_ids=self.renderer.stop_token_ids,
            session=session,
        )


def is_long(messages: Sequence[Message]) -> bool:
    """Whether rendering them takes long enough to be done on a thread."""
    return sum(len(message.content) for message in messages) > _SHORT_CHARS


def appended(
    renderer: TurnRenderer,
    prompt: Sequence[int],
    completion: Sequence[int],
    messages: Sequence[Message],
    new: int,
    tools: Sequence[ToolSpec],
) -> list[int] | None:
    """The tokens behind `prompt` and `completion`; None where there are none without changing what was sampled.

    Args:
        renderer: the model's.
        prompt: token ids.
        completion: what was sampled behind them.
        messages: the whole conversation.
        new: so many of them, the last ones, are new.
        tools: those of the conversation.
    """
    added = renderer.extend(prompt, completion, messages[len(messages) - new :], tools)
    if added is not None:
        return added
    context = [*prompt, *completion]
    whole = renderer.prompt(messages, tools)
    return whole[len(context) :] if whole[: len(context)] == context else None


class _PolicySession:
    def __init__(self, agent: PolicyAgent, tools: tuple[ToolSpec, ...], seed: int) -> None:
        self._agent = agent
        self._tools = tools
        self._seed = seed
        self._messages: list[Message] = []
        self._prompt: list[int] = []
        self._completion: tuple[int, ...] = ()
        self._turns = 0

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        agent = self._agent
        long = is_long(new_messages)
        observation = await on_a_thread(self._observe, new_messages) if long else self._observe(new_messages)
        done = await agent.sample(
            self._prompt,
            seed=derive_seed(self._seed, self._turns),
            session=f"episode-{self._seed:x}",
            opening=self._turns == 0,
        )
        self._turns += 1
        self._completion = done.tokens
        message = agent.renderer.parse(done.tokens, self._prompt, self._tools)
        self._messages.append(message)
        action = Action(done.tokens, done.logprobs, done.versions)
        return Turn(message, done.finish_reason, (Observation(tuple(observation)), action))

    def _observe(self, new_messages: Sequence[Message]) -> list[int]:
        """Append the new messages to the token context; returns the tokens appended."""
        renderer = self._agent.renderer
        self._messages += new_messages
        if self._turns == 0:
            self._prompt = renderer.prompt(self._messages, self._tools)
            return self._prompt
        added = appended(renderer, self._prompt, self._completion, self._messages, len(new_messages), self._tools)
        if added is None:
            raise RenderError(
                "this model's chat format cannot append a turn without changing tokens that were sampled, so it "
                "cannot be trained on conversations: name another renderer in model.renderer"
            )
        self._prompt = [*self._prompt, *self._completion, *added]
        return added
