"""A completion under way: what was asked for, what has arrived, what is still to be sampled.

No I/O: the client sends its requests and gives it what comes back. A token that is here stays, with its log-probability
and the version that sampled it.
"""

import math
import re
import sys
from collections.abc import Sequence

import anyio
import msgspec

from moonmill.agents.streams import Chunk, RefusalError
from moonmill.seeding import derive_seed
from moonmill.types import FinishReason, Sampling

_ROUNDING = 1e-3
"""So far above 0 a log-probability may be."""
_PREFIX = "policy-v"
_VERSION = re.compile(rf"{_PREFIX}([0-9]{{1,9}})")


def version_name(version: int) -> str:
    """The model name under which an engine serves a version."""
    return f"{_PREFIX}{version}"


def version_named(name: str) -> int | None:
    """The version that a model name stands for; None where it is none."""
    found = _VERSION.fullmatch(name)
    return int(found[1]) if found else None


class Run:
    """One completion: what it asks for, and what has arrived."""

    def __init__(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stops: frozenset[int], session: str
    ) -> None:
        self.prompt = list(prompt)
        self.sampling = sampling
        self.session = session
        self.version = 0
        self.vocabulary = sys.maxsize
        """How many tokens the model has, where that is known."""
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish: FinishReason = "length"
        self.scope: anyio.CancelScope | None = None
        self._seed = seed
        self._stops = stops
        self._finished = False
        self.switched = False
        """Whether the last request sent was dropped on purpose."""

    def is_over(self) -> bool:
        """Finished, or complete although the word of it never arrived."""
        if self._finished:
            return True
        if self.tokens and self.tokens[-1] in self._stops:
            self.finish = "stop"
            return True
        return len(self.tokens) >= self.sampling.max_tokens

    def body(self) -> bytes:
        """The request for what is still missing."""
        sampling, so_far = self.sampling, len(self.tokens)
        body = {
            "model": version_name(self.version),
            "prompt": self.prompt + self.tokens,
            "max_tokens": sampling.max_tokens - so_far,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            # Going on with the first seed would draw the first tokens' random numbers again.
            "seed": derive_seed(self._seed, so_far) if so_far else self._seed,
            "stop_token_ids": sorted(self._stops),
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": True,
        }
        return msgspec.json.encode(body)

    def take(self, chunk: Chunk, version: int) -> None:
        """Keep a chunk's tokens, which `version` sampled."""
        for choice in chunk.choices:
            tokens = choice.token_ids or []
            logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else []
            if problem := self._problem_of(tokens, logprobs):
                raise RefusalError(500, problem)
            self.tokens += tokens
            self.logprobs += logprobs
            self.versions += [version] * len(tokens)
            if choice.finish_reason in ("stop", "length"):
                self.finish = "stop" if choice.finish_reason == "stop" else "length"
                self._finished = True

    def _problem_of(self, tokens: list[int], logprobs: list[float]) -> str:
        """Why these can be no tokens of the run's model: a learner would fail on them, or learn nonsense."""
        if len(tokens) != len(logprobs):
            return f"{len(tokens)} tokens arrived with {len(logprobs)} log-probabilities"
        if len(self.tokens) + len(tokens) > self.sampling.max_tokens:
            return f"more than the {self.sampling.max_tokens} tokens arrived that were asked for"
        if strange := [t for t in tokens if not 0 <= t < self.vocabulary]:
            return f"the token {strange[0]} arrived, and the run's model has {self.vocabulary} tokens: this is another"
        if logprobs and not (min(logprobs) > -math.inf and max(logprobs) < _ROUNDING):
            return f"the log-probability {max(logprobs):g} arrived"
        return ""

    def switch(self, version: int) -> None:
        """Go on under another version, from the tokens so far."""
        if version != self.version:
            self.version = version
            self.interrupt()

    def interrupt(self) -> None:
        """Drop the request under way; the next one goes on from the tokens so far."""
        self.switched = True
        if self.scope is not None:
            self.scope.cancel()
