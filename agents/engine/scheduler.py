"""What is decoded next: continuous batching over slots, one version's requests to a forward.

Not thread-safe and without a clock: one thread calls `submit`, `abort`, `step`. What always holds:

- A request is computed by the version it names, from the first token to the last.
- Every request ends exactly once, with a finish reason; one that is aborted says nothing more.
- A request's tokens depend on its prompt, its version, its parameters and its seed, never on what else is decoded: up
  to rounding, for the last bits of a sum depend on its shape; to the bit where requests are computed one by one.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moonmill.agents.engine import sampling
from moonmill.agents.engine.attention import Chunk, KVCache, StepPlan
from moonmill.agents.engine.models import forward
from moonmill.agents.engine.slots import Slot, SlotTable

_PROMPT_TOKENS_PER_STEP = 1024
"""Prompt tokens computed in one step: more would let the requests that are decoding wait."""

Finish = Literal["stop", "length", "abort", "error"]


class Params(NamedTuple):
    """How one request is sampled."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    """End the request as `stop_token_ids` do, but are not named as the reason."""
    top_logprobs: int = 0
    """How many of the likeliest tokens are told for each position."""
    interval: int | None = None
    """Tokens that are handed over at once; None: all of them at the end."""


class Delta(NamedTuple):
    """News of one request: tokens since the last, and how it ended, if it did."""

    tokens: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]]
    finish: Finish | None = None
    stop_token: int | None = None
    error: str | None = None


class Request:
    """One request. `emit` gets its deltas, in the thread that calls `step`."""

    def __init__(self, version: str, prompt: list[int], params: Params, emit: Callable[[Delta], None]) -> None:
        self.version = version
        self.params = params
        self.emit = emit
        self.context = list(prompt)
        self.room = params.max_tokens
        self.stops = params.stop_token_ids | params.eos_token_ids
        self.uniforms = sampling.generator(params.seed)
        self.slot: Slot | None = None
        self.news = Delta([], [], [])


class Counters:
    """Totals since the start."""

    prompt_tokens = 0
    cached_tokens = 0
    """Of the prompt tokens, those that were in the cache already."""
    generated_tokens = 0
    requests = 0
    steps = 0


class Scheduler:
    """Decodes the requests it was given.

    Args:
        models: the versions, by name; others may be added or removed between steps.
        max_batch: slots, and so requests decoded at once.
        max_length: longest context.
        device: where the models are.
        one_by_one: compute each request by itself and anew, several times slower, so that the same request gives the
            same bits whatever else is decoded, or was before.
    """

    def __init__(
        self,
        models: Mapping[str, PreTrainedModel],
        max_batch: int,
        max_length: int,
        device: torch.device,
        *,
        one_by_one: bool = False,
    ) -> None:
        self.counters = Counters()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._models = models
        self._device = device
        self._one_by_one = one_by_one
        self._slots = SlotTable(max_batch)
        self._cache = KVCache(max_batch, max_length)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    def submit(self, request: Request) -> None:
        """Queue a request. Its prompt fits, and is not empty."""
        self.counters.requests += 1
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request that nobody listens to any more."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self._leave(request)

    def forget(self, version: str) -> None:
        """End a version's requests with `abort` and drop its cache."""
        for request in [r for r in (*self.running, *self.waiting) if r.version == version]:
            self._end(request, "abort")
        self._slots.forget(version)

    def fail(self, error: str) -> None:
        """End all requests with an error, and trust nothing that is cached."""
        for request in [*self.running, *self.waiting]:
            self._end(request, "error", error=error)
        self._slots.clear()

    def clear(self) -> None:
        """End all requests with `abort`, and free the cache's memory."""
        for request in [*self.running, *self.waiting]:
            self._end(request, "abort")
        self._slots.clear()
        self._cache.clear()

    def step(self) -> None:
        """Admit what fits, then compute one forward for each version that has requests, or for each request."""
        self._admit()
        by_version: dict[str, list[Request]] = {}
        for request in self.running:
            by_version.setdefault(request.version, []).append(request)
        for version, requests in by_version.items():
            for batch in [[request] for request in requests] if self._one_by_one else [requests]:
                self._forward(self._models[version], batch)
        self.counters.steps += 1

    def _admit(self) -> None:
        admitted = False
        while self.waiting:
            request = self.waiting[0]
            if request.version not in self._models:
                self._end(request, "abort")
                continue
            placement = self._slots.place(request.version, request.context, reuse=not self._one_by_one)
            if placement is None:
                break
            self.waiting.popleft()
            if placement.source is not None:
                self._cache.reserve(placement.cached)
                self._cache.copy_prefix(placement.source.index, placement.slot.index, placement.cached)
            request.slot = placement.slot
            self.running.append(request)
            self.counters.prompt_tokens += len(request.context)
            self.counters.cached_tokens += placement.cached
            admitted = True
        if admitted:
            self.running.sort(key=_slot_index)

    def _forward(self, model: PreTrainedModel, requests: list[Request]) -> None:
        chunks: list[Chunk] = []
        ids: list[int] = []
        ready: list[Request] = []
        ends: list[int] = []
        budget = _PROMPT_TOKENS_PER_STEP
        for request in requests:
            slot, context = request.slot, request.context
            assert slot is not None
            start = slot.length
            count = len(context) - start
            if count > 1:
                count = min(count, budget)
                budget -= count
                if count == 0:
                    continue
            slot.length = start + count
            chunks.append(Chunk(slot.index, start, count))
            ids += context[start : slot.length]
            if slot.length == len(context):
                ready.append(request)
                ends.append(len(ids) - 1)
        self._cache.reserve(max(chunk.start + chunk.length for chunk in chunks))
        plan = StepPlan(chunks, self._cache, self._device)
        # Its type is said because `ends` is empty where a long prompt alone is computed, and not to its end.
        at = None if len(ends) == len(ids) else torch.tensor(ends, dtype=torch.long, device=self._device)
        logits = forward(model, torch.tensor([ids], device=self._device), plan, at)
        if ready:
            self._sample(ready, logits)

    def _sample(self, rows: list[Request], logits: Tensor) -> None:
        params = [row.params for row in rows]
        temperature = self._rows([p.temperature for p in params])
        logprobs = sampling.processed_logprobs(
            logits, temperature, self._rows([p.top_p for p in params]), self._rows([float(p.top_k) for p in params])
        )
        if not any(p.temperature for p in params):
            tokens = logprobs.argmax(-1)
        else:
            uniforms = torch.tensor([row.uniforms.random() for row in rows], dtype=torch.float64, device=self._device)
            tokens = sampling.draw(logprobs, uniforms)
            if isinstance(temperature, Tensor):
                tokens = torch.where(temperature == 0, logprobs.argmax(-1), tokens)
        taken = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        told, values = torch.stack((tokens.double(), taken.double())).tolist()
        top = self._top(logprobs, params)
        self.counters.generated_tokens += len(rows)
        for i, row in enumerate(rows):
            self._append(row, int(told[i]), values[i], top[i] if top else None)

    def _append(self, request: Request, token: int, logprob: float, top: list[tuple[int, float]] | None) -> None:
        if not math.isfinite(logprob):
            self._end(request, "error", error=f"version {request.version!r} computes {logprob} as a log-probability")
            return
        news = request.news
        news.tokens.append(token)
        news.logprobs.append(logprob)
        if request.params.top_logprobs and top is not None:
            news.top.append(top[: request.params.top_logprobs])
        request.context.append(token)
        request.room -= 1
        if token in request.stops:
            named = token in request.params.stop_token_ids and token not in request.params.eos_token_ids
            self._end(request, "stop", stop_token=token if named else None)
        elif request.room == 0:
            self._end(request, "length")
        elif request.params.interval is not None and len(news.tokens) >= request.params.interval:
            request.news = Delta([], [], [])
            request.emit(news)

    def _end(
        self, request: Request, finish: Finish, *, stop_token: int | None = None, error: str | None = None
    ) -> None:
        self.abort(request)
        request.emit(request.news._replace(finish=finish, stop_token=stop_token, error=error))

    def _leave(self, request: Request) -> None:
        assert request.slot is not None
        self.running.remove(request)
        self._slots.release(request.slot)
        request.slot = None

    def _rows(self, values: list[float]) -> Tensor | float:
        """One number where all rows agree, which they mostly do."""
        first = values[0]
        return first if values.count(first) == len(values) else torch.tensor(values, device=self._device)

    def _top(self, logprobs: Tensor, params: Iterable[Params]) -> list[list[tuple[int, float]]] | None:
        most = max(p.top_logprobs for p in params)
        if most == 0:
            return None
        values, ids = logprobs.topk(min(most, logprobs.shape[-1]))
        return [list(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


def _slot_index(request: Request) -> int:
    assert request.slot is not None
    return request.slot.index
