"""Any model behind an OpenAI-compatible chat API as an agent: for evaluation and comparison, not for training.

Such an API returns text, not token ids, so its rollouts carry no segments.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import anyio
import httpx
import msgspec
from msgspec import Meta, Struct

from moonmill.agents.agent import Session, Turn
from moonmill.envs import ToolSpec
from moonmill.errors import ConfigError, ContextFullError, EngineError, PromptTooLongError
from moonmill.types import FinishReason, Message, Sampling, ToolCall, Usage

_RETRY_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_TOO_LONG = ("maximum context length", "context_length_exceeded")
"""What APIs say of a conversation that leaves no room for an answer."""
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0
"""An API may ask for more patience than an episode has."""


class ChatAgent:
    """Plays episodes through `POST {base_url}/chat/completions`.

    Args:
        base_url: the API's root, such as `http://127.0.0.1:8000/v1`.
        model: the model's name there.
        sampling: how tokens are drawn.
        api_key: sent as a bearer token; never logged, nor shown where the API repeats it in an error.
        timeout: seconds one answer may take.
        max_attempts: tries per answer; the wait between two doubles from half a second, unless the API names another.
            While an API that has had too many requests (429) names one, no episode asks it.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        sampling: Sampling,
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        max_attempts: int = 5,
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.max_attempts = max_attempts
        self._timeout = timeout
        self._api_key = api_key
        self._open_at = 0.0
        """When the API may be asked again, in the event loop's time."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"the chat API's address is {base_url!r}, but should look like http://127.0.0.1:8000/v1")
        # How many requests there are at once is the episodes' business: none waits for another's connection.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout, limits=limits)

    async def __aenter__(self) -> "ChatAgent":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return _ChatSession(self, tools, seed)

    async def request(self, body: dict[str, Any]) -> "_Answer":
        """One answer, tried again where the API is busy or out of reach.

        Raises:
            ContextFullError: the model's context has no room for it.
            EngineError: the API refused the request, or every attempt failed.
        """
        url = f"{self._http.base_url}chat/completions"
        problem, wait = "", 0.0
        for attempt in range(self.max_attempts):
            await anyio.sleep(wait)
            await anyio.sleep_until(self._open_at)
            wait = _FIRST_WAIT * 2**attempt
            try:
                with anyio.fail_after(self._timeout):
                    answer = await self._http.post("chat/completions", json=body)
            except TimeoutError:
                problem = f"no answer within {self._timeout:g} s"
                continue
            except httpx.HTTPError as e:
                problem = f"{type(e).__name__}: {e}"
                continue
            if answer.status_code == 200:
                return _answer(answer.content, url)
            problem = f"status {answer.status_code}: {self._without_key(answer.text)[:500]}"
            if answer.status_code in (400, 413) and any(words in answer.text for words in _TOO_LONG):
                raise ContextFullError(f"{url}: {problem}")
            if answer.status_code not in _RETRY_STATUS:
                raise EngineError(f"{url} refused a request to model {self.model!r}: {problem}")
            asked = _asked_wait(answer)
            wait = asked or wait
            if asked and answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                self._open_at = max(self._open_at, anyio.current_time() + asked)
        raise EngineError(f"{url} gave no answer in {self.max_attempts} attempts; the last: {problem}")

    def _without_key(self, text: str) -> str:
        return text.replace(self._api_key, "…") if self._api_key else text


class _ChatSession:
    def __init__(self, agent: ChatAgent, tools: tuple[ToolSpec, ...], seed: int) -> None:
        self._agent = agent
        self._messages: list[dict[str, Any]] = []
        self._turns = 0
        sampling = agent.sampling
        self._body: dict[str, Any] = {
            "model": agent.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": seed,
        }
        if sampling.top_k:
            self._body["top_k"] = sampling.top_k
        if tools:
            self._body["tools"] = [tool.to_openai() for tool in tools]

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        self._messages += [to_chat(m) for m in new_messages]
        try:
            answer = await self._agent.request({**self._body, "messages": self._messages})
        except ContextFullError as e:
            if self._turns:
                raise
            raise PromptTooLongError(str(e)) from e
        choice, told = answer.choices[0], answer.usage
        self._turns += 1
        message = choice.message.to_message(self._turns)
        self._messages.append(to_chat(message))
        finish: FinishReason = "length" if choice.finish_reason == "length" else "stop"
        return Turn(message, finish, usage=Usage(told.prompt_tokens, told.completion_tokens) if told else None)


def to_chat(message: Message) -> dict[str, Any]:
    """A message in the chat API's shape."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _arguments_text(c)}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def _arguments_text(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()


class _Function(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None
    """JSON text, by the letter of the API; some servers send the object."""


class _Call(Struct):
    function: _Function
    id: str = ""


class _ChatMessage(Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """What newer servers call it."""

    def to_message(self, turn: int) -> Message:
        """As our message. A call without an id gets one that no other of the episode has."""
        calls = tuple(
            _tool_call(call.id or f"call-{turn}-{i}", call.function) for i, call in enumerate(self.tool_calls or [])
        )
        reasoning = self.reasoning_content or self.reasoning
        return Message("assistant", self.content or "", tool_calls=calls, reasoning=reasoning)


class _Choice(Struct):
    message: _ChatMessage
    finish_reason: FinishReason | str | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(Struct):
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    usage: _Usage | None = None


def _asked_wait(answer: httpx.Response) -> float | None:
    """The seconds of the `Retry-After` header; one with a date is passed over."""
    text = answer.headers.get("retry-after", "")
    return min(float(text), _LONGEST_WAIT) if text.isdecimal() else None


def _answer(body: bytes, url: str) -> _Answer:
    try:
        return msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError as e:
        raise EngineError(f"{url} answered in a shape that is not the chat API's: {e}") from e


def _tool_call(id: str, function: _Function) -> ToolCall:
    """A call whose arguments are no JSON object keeps them as text; the environment tells the model."""
    arguments = function.arguments or {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return ToolCall(id, function.name, arguments)
    return ToolCall(id, function.name, arguments)
