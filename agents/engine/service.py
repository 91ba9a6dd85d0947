"""What the routes stand on: the versions that are loaded, and the way from a request to its pieces.

Every version has a name of its own and requests name the one they want. A version is complete before its name is known,
and its requests have ended before it is gone.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread
import torch
from msgspec import Struct
from transformers import GenerationConfig, PreTrainedModel

from moonmill.agents.engine.folder import text_of
from moonmill.agents.engine.loop import DecodeLoop
from moonmill.agents.engine.models import ModelError, load_model, load_version, move_weights
from moonmill.agents.engine.protocol import ApiError, ChatRequest, CompletionRequest
from moonmill.agents.engine.scheduler import Params, Scheduler
from moonmill.agents.engine.text import Detokenizer, load_text
from moonmill.errors import MoonmillError
from moonmill.types import COOLEST

if TYPE_CHECKING:
    from moonmill.agents.rendering import TurnRenderer


_LONG_TEXT = 2**14
"""From this size on, tokenizing a text takes long enough to be noticed by those who wait."""


class Options(Struct, frozen=True, kw_only=True):
    """What an engine is started with."""

    model: str
    served_name: str
    max_batch: int = 64
    max_length: int | None = None
    """Longest context; None takes the model's."""
    threads: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    renderer: str = "auto"
    tool_format: str = ""
    batch_invariant: bool = False
    stream_interval: int = 16
    """Tokens that a stream's chunk carries."""
    can_sleep: bool = False
    """Whether it can be told to sleep."""


class Piece(NamedTuple):
    """What is new of a generation, in tokens and in text."""

    tokens: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]]
    text: str
    finish: str | None
    stop_reason: int | str | None


class Service:
    """One engine: a base model, its versions, and the loop that decodes them.

    Raises:
        ModelError: the model cannot be loaded or served.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.base = load_model(options.model, options.dtype, options.device)
        config = self.base.config.get_text_config()
        self.vocab: int = config.vocab_size
        positions: int | None = getattr(config, "max_position_embeddings", None)
        if options.max_length is not None and positions is not None and options.max_length > positions:
            raise ModelError(
                f"a context of {options.max_length} tokens is asked for, but the model {options.model} has {positions} "
                "positions: lower --max-length"
            )
        self.max_length = options.max_length or positions or 2048
        self.eos = _eos_ids(self.base)
        self.text = load_text(text_of(options.model))
        self.models: dict[str, PreTrainedModel] = {options.served_name: self.base}
        self.paths: dict[str, str] = {options.served_name: options.model}
        scheduler = Scheduler(
            self.models, options.max_batch, self.max_length, self.base.device, one_by_one=options.batch_invariant
        )
        self.loop = DecodeLoop(scheduler, options.threads)
        self.asleep = False
        self._device = self.base.device
        self._renderer: TurnRenderer | None = None
        self._lock = anyio.Lock()
        self._first_chat = anyio.Lock()
        self._tokenizing = {long: anyio.CapacityLimiter(1) for long in (False, True)}

    async def load(self, name: str, path: str) -> None:
        """Load the weights in a folder under a new name, while others are decoded."""
        async with self._lock:
            self.require_awake()
            if name in self.models:
                raise ApiError(
                    f"{name!r} has already been loaded: give every version a name of its own", param="lora_name"
                )
            try:
                model = await anyio.to_thread.run_sync(self._load, Path(path))
            except ModelError as e:
                raise ApiError(str(e), param="lora_path") from e
            await self.loop.call(lambda: self.models.__setitem__(name, model))
            self.paths[name] = path

    async def unload(self, name: str) -> None:
        """Forget a version; its requests end with `abort`."""
        async with self._lock:
            self.require(name)
            if name == self.options.served_name:
                raise ApiError("the model the engine was started with cannot be unloaded", param="lora_name")

            def forget() -> None:
                del self.models[name]
                self.loop.scheduler.forget(name)

            await self.loop.call(forget)
            del self.paths[name]

    async def sleep(self) -> None:
        """Give memory free: requests end with `abort`, the cache is dropped, weights go to the CPU's memory."""
        async with self._lock:
            self.asleep = True
            await self.loop.call(self._give_free)

    async def wake_up(self) -> None:
        """Take the weights back, and serve again."""
        async with self._lock:
            await self.loop.call(lambda: self._move(self._device))
            self.asleep = False

    def require_awake(self) -> None:
        """Raise the answer of an engine that sleeps; vLLM has requests wait instead."""
        if self.asleep:
            raise ApiError("the engine is asleep, until POST /wake_up", 503)

    def require(self, name: str) -> None:
        """Raise the answer for a version that is not there."""
        if name not in self.models:
            raise ApiError(f"the model {name!r} does not exist; loaded: {', '.join(self.models)}", 404, param="model")

    async def renderer(self) -> "TurnRenderer":
        """The model's chat format, loaded when it is first needed."""
        async with self._first_chat:
            if self._renderer is None:
                try:
                    self._renderer = await anyio.to_thread.run_sync(self._load_renderer)
                except MoonmillError as e:
                    raise ApiError(f"this model cannot chat: {e}") from e
            return self._renderer

    async def tokenize(self, encode: Callable[[], list[int]], size: int) -> list[int]:
        """What `encode` returns, computed in a thread: one text at a time, and short ones never behind long ones.

        Args:
            encode: tokenizes.
            size: of the text, in characters or bytes.
        """
        return await anyio.to_thread.run_sync(encode, limiter=self._tokenizing[size > _LONG_TEXT])

    def params(
        self,
        request: CompletionRequest | ChatRequest,
        prompt: list[int],
        max_tokens: int | None,
        stop_token_ids: tuple[int, ...] = (),
        top_logprobs: int = 0,
    ) -> Params:
        """How a request is sampled; `max_tokens` None takes all the room there is.

        Raises:
            ApiError: it does not fit, names tokens that the model does not have, or finds the engine asleep.
        """
        self.require_awake()
        self.require(request.model)
        room = self.max_length - len(prompt)
        if room < 1 or (max_tokens is not None and max_tokens > room):
            wanted = "" if max_tokens is None else f" and {max_tokens} are asked for"
            raise ApiError(
                f"this model's maximum context length is {self.max_length} tokens; the prompt has "
                f"{len(prompt)}{wanted}",
                param="max_tokens" if room >= 1 else "prompt",
            )
        if not prompt:
            raise ApiError("the prompt is empty: it needs at least one token", param="prompt")
        if min(prompt) < 0 or max(prompt) >= self.vocab:
            bad = next(t for t in prompt if not 0 <= t < self.vocab)
            raise ApiError(
                f"the prompt has the token {bad}, but the vocabulary ends at {self.vocab - 1}", param="prompt"
            )
        temperature = 1.0 if request.temperature is None else request.temperature
        if 0 < temperature < COOLEST:
            raise ApiError(
                f"temperature: {temperature} is too low to be computed: the lowest is {COOLEST}, and 0 is greedy",
                param="temperature",
            )
        stops = request.stops
        if stops and self.text is None:
            raise ApiError("stop needs a tokenizer, and the model folder has none: use stop_token_ids", param="stop")
        interval = self.options.stream_interval if request.stream else None
        return Params(
            max_tokens=max_tokens or room,
            temperature=temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(request.top_k or 0, 0),
            seed=request.seed,
            stop_token_ids=frozenset((*(request.stop_token_ids or ()), *stop_token_ids)),
            eos_token_ids=frozenset() if request.ignore_eos else self.eos,
            top_logprobs=top_logprobs,
            # Looking for stop strings as tokens come wastes none behind them.
            interval=1 if stops else interval,
        )

    async def pieces(
        self, request: CompletionRequest | ChatRequest, prompt: list[int], params: Params
    ) -> AsyncGenerator[Piece]:
        """A generation as it comes; the last piece has a finish reason.

        Raises:
            ApiError: the engine failed.
        """
        detokenizer = Detokenizer(self.text, request.stops, request.skip_special_tokens is not False)
        async with aclosing(self.loop.generate(request.model, prompt, params)) as deltas:
            async for delta in deltas:
                if delta.finish == "error":
                    raise ApiError(str(delta.error), 500)
                text, used = detokenizer.push(delta.tokens, last=delta.finish is not None)
                finish: str | None = delta.finish
                reason: int | str | None = delta.stop_token
                if detokenizer.stopped is not None:
                    finish, reason = "stop", detokenizer.stopped
                yield Piece(delta.tokens[:used], delta.logprobs[:used], delta.top[:used], text, finish, reason)
                if finish is not None:
                    return

    def _load_renderer(self) -> "TurnRenderer":
        # Training never chats, and importing the renderers takes a second of a restart.
        from moonmill.agents.rendering import load_renderer

        return load_renderer(text_of(self.options.model), self.options.renderer, self.options.tool_format)

    def _give_free(self) -> None:
        self.loop.scheduler.clear()
        self._move(torch.device("cpu"))
        torch.cuda.empty_cache()

    def _move(self, device: torch.device) -> None:
        if self._device.type != "cpu":
            move_weights(self.models.values(), lambda tensor: tensor.to(device))

    def _load(self, path: Path) -> PreTrainedModel:
        return load_version(self.base, path)


def _eos_ids(model: PreTrainedModel) -> frozenset[int]:
    generation: GenerationConfig | None = model.generation_config
    eos = generation.eos_token_id if generation is not None else None
    if eos is None:
        eos = model.config.get_text_config().eos_token_id
    if eos is None:
        return frozenset()
    return frozenset((eos,) if isinstance(eos, int) else eos)
