"""`reasoning-gym:NAME`: the data sets of reasoning-gym, which make problems without end and score answers themselves.

`reasoning-gym:composite` mixes several. The library runs in workers alone (`reasoning_gym_work` says why): a generator
that hangs ends the run with its name, a scorer that hangs leaves the rollout unscored.
"""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from moonmill.envs import MultiTurnEnv, metric, reward
from moonmill.envs.library.math.answers import tagged
from moonmill.envs.workers import WORKERS, in_worker
from moonmill.errors import ConfigError, MissingExtraError, WorkerDiedError, WorkerTimeoutError
from moonmill.seeding import derive_seed
from moonmill.types import Rollout, Status, Task

LEFT_OUT = {
    "codeio": "it runs programs that a model wrote, to make its problems, and not in a sandbox",
    "coin_flip": "its scorer pays in full for 0",
    "complex_arithmetic": "its scorer pays in full for nan",
    "game_of_life_halting": "its scorer pays in full for any answer that is not empty",
}
"""Data sets that are not to be had, and why."""
COMPOSITE = "composite"
_WORK = "moonmill.envs.adapters.reasoning_gym_work"
_DRAW_SECONDS = 120.0


class Source(Struct, frozen=True, omit_defaults=True):
    """What problems are drawn from: a data set with its configuration and, if it is to have one, its level."""

    name: str
    config: dict[str, Any] = {}
    level: int | None = None


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A data set in a mixture."""

    name: str
    weight: Annotated[float, Meta(gt=0)] = 1.0
    config: dict[str, Any] = {}
    levels: tuple[int, ...] = ()
    """Of its curriculum, each as likely as the others; none takes the configuration as it is."""

    def sources(self) -> tuple[Source, ...]:
        """One for each level."""
        return tuple(Source(self.name, self.config, level) for level in self.levels or (None,))


class Drawn(Struct, frozen=True):
    """What a task is, for its scorer."""

    source: Source
    seed: int
    index: int
    answer: str | None
    """One that is worth 1; None where the data set gives none."""


class ReasoningGym(MultiTurnEnv):
    """Solve a problem of reasoning-gym; the answer stands between `<answer>` and `</answer>`, or in the last line.

    Args:
        dataset: its name there, or `composite`.
        config: fields of its configuration, but for `seed` and `size`.
        levels: of its curriculum, from 0, each as likely as the others; fields in `config` win. Without any, the
            configuration's defaults hold.
        datasets: what `composite` mixes: names, or dicts with `name`, `weight`, `config` and `levels`.
    """

    max_turns = 1
    max_seconds = 600.0
    score_seconds = 10.0
    reward_bounds = (0.0, 1.0)
    system_prompt = "Solve the problem. You may think first; then give the answer alone between <answer> and </answer>."

    def __init__(
        self,
        dataset: str,
        config: Mapping[str, Any] | None = None,
        levels: Sequence[int] = (),
        datasets: Sequence[str | Mapping[str, Any]] = (),
    ) -> None:
        if not _is_installed():
            raise MissingExtraError(f"reasoning-gym:{dataset}", "reasoning-gym")
        if dataset != COMPOSITE:
            if datasets:
                raise ConfigError(f"reasoning-gym:{dataset}: datasets is for reasoning-gym:{COMPOSITE} alone")
            datasets = [{"name": dataset, "config": config or {}, "levels": levels}]
        elif config or levels or not datasets or isinstance(datasets, str):
            raise ConfigError(
                f"reasoning-gym:{COMPOSITE} needs datasets alone, a list such as "
                "[leg_counting, {name: chain_sum, weight: 2, levels: [0, 1]}], where each can have config and levels"
            )
        self.is_mixture = dataset == COMPOSITE
        self.parts = tuple(_part(given) for given in datasets)

    def tasks(self, split: str) -> Iterator[Task]:
        if split not in ("train", "eval"):
            raise ConfigError(f"reasoning-gym has no split {split!r}: it has train and eval")
        rng, weights = self.task_rng(split), [part.weight for part in self.parts]
        following: dict[str, int] = {}
        while True:
            [part] = rng.choices(self.parts, weights)
            source = rng.choice(part.sources())
            text = _text(source)
            seed = derive_seed(self.taskset_seed, "reasoning-gym", split, text)
            drawn = _asked("draw", text, seed, following.get(text, 0), split)
            if drawn is None:
                raise ConfigError(f"reasoning-gym:{source.name} makes too few problems for a split {split} of its own")
            following[text] = drawn["index"] + 1
            answer = Drawn(source, seed, drawn["index"], drawn["answer"])
            yield Task(drawn["question"], answer, level=self._level(source))

    @reward
    def score(self, rollout: Rollout) -> float | None:
        given = self._given(rollout)
        if not given:
            return 0.0
        task = msgspec.convert(self.task.answer, Drawn)
        place = f"{_WORK}:score"
        try:
            return float(
                in_worker(self, place, _text(task.source), task.seed, task.index, given, limit=self.score_seconds)
            )
        except (WorkerTimeoutError, WorkerDiedError):
            return None

    @metric
    def answered(self, rollout: Rollout) -> float:
        return float(bool(self._given(rollout)))

    def _given(self, rollout: Rollout) -> str:
        return answer_in(rollout.final_text()) if rollout.status is Status.FINISHED else ""

    def _level(self, source: Source) -> str:
        level = "" if source.level is None else str(source.level)
        return f"{source.name} {level}".strip() if self.is_mixture else level


def answer_in(text: str) -> str:
    """What stands in the last `<answer>…</answer>`, else in the last line; empty where there is nothing."""
    found = tagged(text)
    if found is not None:
        return found.strip()
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _part(given: Any) -> Part:
    try:
        part = msgspec.convert({"name": given} if isinstance(given, str) else given, Part)
    except msgspec.ValidationError as e:
        raise ConfigError(f"reasoning-gym: {given!r:.200} is no data set to mix in: {e}") from None
    for source in part.sources():
        wrong = _problem_of(_text(source))
        if wrong is not None:
            level = "" if source.level is None else f", level {source.level}"
            raise ConfigError(f"reasoning-gym:{part.name}{level}: {wrong}")
    return part


@cache
def _problem_of(source: str) -> str | None:
    """What is wrong with it; asked once, not by every episode."""
    name = msgspec.json.decode(source, type=Source).name
    if name in LEFT_OUT:
        return f"this data set is left out, because {LEFT_OUT[name]}"
    there = [other for other in _asked("names") if other not in LEFT_OUT]
    if name not in there or name == COMPOSITE:
        near = " or ".join(get_close_matches(name, there, n=3))
        return f"there is no such data set; {f'did you mean {near}?' if near else 'there are: ' + ', '.join(there)}"
    wrong: str | None = _asked("problem_of", source)
    return wrong


def _asked(function: str, *arguments: Any) -> Any:
    """Ahead of all scoring: answers that hang their scorers are not to hold up the next tasks."""
    return WORKERS.call(f"{_WORK}:{function}", *arguments, limit=_DRAW_SECONDS, urgent=True)


def _text(source: Source) -> str:
    return msgspec.json.encode(source, order="deterministic").decode()


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec("reasoning_gym") is not None
