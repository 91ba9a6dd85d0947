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
from moonmill.types import Action, Message, Observation, Sampling

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
        long = sum(len(message.content) for message in new_messages) > _SHORT_CHARS
        observation = await on_a_thread(self._observe, new_messages) if long else self._observe(new_messages)
        room = agent.max_length - len(self._prompt)
        if room < 1:
            if self._turns == 0:
                raise PromptTooLongError(
                    f"the prompt has {len(self._prompt)} tokens, but the context has {agent.max_length} and an action "
                    "needs at least one: raise model.max_length or shorten the task"
                )
            raise ContextFullError(f"the conversation has {len(self._prompt)} tokens of {agent.max_length}")
        sampling = agent.sampling
        done = await agent.client.complete(
            self._prompt,
            Sampling(sampling.temperature, sampling.top_p, sampling.top_k, min(room, sampling.max_tokens)),
            seed=derive_seed(self._seed, self._turns),
            stop_token_ids=agent.renderer.stop_token_ids,
            session=f"episode-{self._seed:x}",
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
        added = renderer.extend(self._prompt, self._completion, new_messages, self._tools)
        context = [*self._prompt, *self._completion]
        if added is None:
            whole = renderer.prompt(self._messages, self._tools)
            if whole[: len(context)] != context:
                raise RenderError(
                    "this model's chat format cannot append a turn without changing tokens that were sampled, so it "
                    "cannot be trained on conversations: name another renderer in model.renderer"
                )
            added = whole[len(context) :]
        self._prompt = context + added
        return added
