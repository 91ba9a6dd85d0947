"""The bodies of requests and answers: OpenAI's, with vLLM's additions for token ids.

A field that would change what is sampled is either honoured or refused, never ignored. Fields this engine has never
heard of are passed over, as vLLM does, since client libraries send many.
"""

import reprlib
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

S = TypeVar("S", bound=Struct)

Positive = Annotated[int, Meta(ge=1)]
Temperature = Annotated[float, Meta(ge=0, le=100)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Stops = Annotated[list[str], Meta(max_length=64)]
"""Every token's text is searched for each of them."""
VersionName = Annotated[str, Meta(min_length=1, max_length=256)]
FolderPath = Annotated[str, Meta(min_length=1, max_length=4096)]

_LONGEST_MESSAGE = 1000
"""Characters of an error's message: a value that is quoted in it may be megabytes."""

_ONLY: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
}
"""Fields of vLLM's and OpenAI's that are understood but not supported: the values, besides null, that change
nothing."""

_Unsupported = msgspec.defstruct("_Unsupported", [(name, Any, None) for name in _ONLY])


_KINDS = {401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError"}


class ApiError(Exception):
    """What a request gets instead of an answer.

    Args:
        message: shortened where it is long.
        status: of HTTP.
        param: the field that is to blame.
        code: OpenAI's name for the error; None tells the status.
    """

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        half = _LONGEST_MESSAGE // 2
        self.message = message if len(message) <= _LONGEST_MESSAGE else f"{message[:half]} ... {message[-half:]}"
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """The error as OpenAI's clients expect it."""
        error = {
            "message": self.message,
            "type": _KINDS.get(self.status, "BadRequestError" if self.status < 500 else "InternalServerError"),
            "param": self.param,
            "code": self.code or self.status,
        }
        return msgspec.json.encode({"error": error})


class StreamOptions(Struct):
    """What a stream carries besides tokens."""

    include_usage: bool | None = None


class _Sampled(Struct, kw_only=True):
    """The fields completions and chats share."""

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: str | Stops | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        texts = [self.stop] if isinstance(self.stop, str) else self.stop
        if "" in texts:
            raise ApiError("stop may not hold an empty string", param="stop")
        return tuple(texts)

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionRequest(_Sampled, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[int | str | list[int]]
    max_tokens: Positive | None = None
    logprobs: TopLogprobs | None = None
    return_tokens_as_token_ids: bool | None = None


class ChatFunction(Struct):
    """A function a model may call, or has called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: str | dict[str, Any] | None = None


class ChatTool(Struct):
    """A tool that is offered."""

    function: ChatFunction
    type: str = "function"


class ChatCall(Struct):
    """A call in an assistant's message."""

    function: ChatFunction
    id: str = ""


class ChatMessage(Struct):
    """A message of the conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ChatCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None


class ChatRequest(_Sampled, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[ChatMessage]
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


class LoadRequest(Struct):
    """Body of `/v1/load_lora_adapter`: a version's name and the folder its weights are in."""

    lora_name: VersionName
    lora_path: FolderPath


class UnloadRequest(Struct):
    """Body of `/v1/unload_lora_adapter`."""

    lora_name: VersionName


class Logprobs(Struct):
    """Log-probabilities of a completion's tokens, as `/v1/completions` gives them."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Struct):
    """The completion, or what is new of it."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Usage(Struct):
    """Tokens read and sampled."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(Struct):
    """Answer of `/v1/completions`, and each chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
    object: str = "text_completion"


def decode_body(body: bytes, kind: type[S]) -> S:
    """A request's body as a struct.

    Raises:
        ApiError: it is no JSON, has wrong types or values, or asks for what this engine cannot do.
    """
    request = _decode(body, kind)
    if issubclass(kind, _Sampled):
        # A second look is cheap: what has no place in the struct, a long prompt above all, is skipped and not read.
        _refuse_unsupported(_decode(body, _Unsupported))
    return request


def _decode(body: bytes, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as e:
        what, _, where = str(e).partition(" - at ")
        name = where.strip("`").removeprefix("$.").removeprefix("$")
        raise ApiError(f"{name or 'body'}: {what}", param=name or None) from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ApiError(f"the body is not JSON: {e}") from e
    except RecursionError as e:
        raise ApiError("the body is nested too deeply to be read") from e


def _refuse_unsupported(found: Struct) -> None:
    for name, usual in _ONLY.items():
        value = getattr(found, name)
        if value is not None and value not in usual:
            raise ApiError(
                f"{name}={reprlib.repr(value)} is not supported: leave it out or set it to "
                f"{', '.join(map(repr, usual)) or 'null'}",
                param=name,
            )
