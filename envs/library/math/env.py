"""`math-v0`: solve a problem, and give the answer in a box. What counts as the answer is in `answers`."""

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache

from moonmill.envs import MultiTurnEnv, metric, reward
from moonmill.envs.library.math.answers import final_answer, plain_number
from moonmill.envs.library.math.files import BENCHMARKS, Problem, benchmark, check_file, read_problems
from moonmill.envs.library.math.generated import MAX_LEVEL, generated_problems
from moonmill.envs.library.splits import check_split, checked_levels, split_of
from moonmill.envs.workers import in_worker
from moonmill.errors import ConfigError, MissingExtraError, WorkerDiedError, WorkerTimeoutError
from moonmill.types import Rollout, Status, Task


class Math(MultiTurnEnv):
    r"""Solve a problem of mathematics; the final answer stands in `\boxed{…}`.

    Args:
        source: where problems come from: `generated`; `gsm8k` or `aime2025`, for evaluation; or a JSONL file in the
            shape of GSM8K, MATH or AIME, of which one problem in eight is for evaluation.
        eval_source: where those for evaluation come from instead, all of them; training then leaves them out.
        levels: of generated problems, the numbers of steps, from 1 to 6; each is as likely as the others. All unless
            given.
    """

    max_turns = 1
    max_seconds = 600.0
    verify_seconds = 10.0
    reward_bounds = (0.0, 1.0)
    system_prompt = r"Solve the problem step by step. Put your final answer in \boxed{}."

    def __init__(
        self, source: str = "generated", eval_source: str | None = None, levels: Sequence[int] | None = None
    ) -> None:
        if not _is_installed("math_verify"):
            raise MissingExtraError("math-v0", "math")
        self.source = source
        self.eval_source = eval_source
        for name, value in (("source", source), ("eval_source", eval_source)):
            if value is not None and str(value) not in ("generated", *BENCHMARKS):
                check_file(f"math-v0: {name}", str(value))
        self.levels = _checked_levels((source, eval_source), levels)

    def tasks(self, split: str) -> Iterator[Task]:
        check_split("math-v0", split)
        for problem in self._problems(split):
            yield Task(problem.text, problem.answer, id=problem.id, level=problem.level)

    @reward
    def correct(self, rollout: Rollout) -> float | None:
        given, is_expression = self._given(rollout)
        if not given:
            return 0.0
        wanted = str(self.task.answer)
        numbers = plain_number(wanted), plain_number(given)
        if None not in numbers:
            return float(numbers[0] == numbers[1])
        place = "moonmill.envs.library.math.verifying:agree"
        try:
            return float(in_worker(self, place, wanted, given, is_expression, limit=self.verify_seconds))
        except (WorkerTimeoutError, WorkerDiedError):
            return None

    @metric
    def answered(self, rollout: Rollout) -> float:
        return float(bool(self._given(rollout)[0]))

    @metric
    def in_place(self, rollout: Rollout) -> float:
        return float(self._given(rollout)[1])

    def _given(self, rollout: Rollout) -> tuple[str, bool]:
        return final_answer(rollout.final_text()) if rollout.status is Status.FINISHED else ("", False)

    def _problems(self, split: str) -> Iterator[Problem]:
        rng, apart = self.task_rng(split), self.eval_source is not None
        source = self.eval_source if self.eval_source is not None and split == "eval" else self.source
        if source == "generated":
            yield from generated_problems(rng, split, self.levels)
            return
        if source in BENCHMARKS:
            if split != "eval":
                raise ConfigError(
                    f"math-v0: {source} is there to evaluate, and has no split {split!r}: give it as eval_source, and "
                    "another source to train on"
                )
            yield from benchmark(source)
            return
        problems = list(read_problems(source))
        if not apart:
            problems = [p for p in problems if split_of(p.text) == split]
        elif split == "train":
            held_out = {p.text for p in self._problems("eval")} if self.eval_source != "generated" else set()
            problems = [p for p in problems if p.text not in held_out]
        if split == "train":
            rng.shuffle(problems)
        yield from problems


def _checked_levels(sources: tuple[str | None, ...], levels: Sequence[int] | None) -> tuple[int, ...]:
    if levels is None:
        return tuple(range(1, MAX_LEVEL + 1))
    if "generated" not in sources:
        raise ConfigError(f"math-v0: {sources[0]} has no levels to choose, and levels is {levels!r}: leave it out")
    return checked_levels("math-v0", levels, MAX_LEVEL)


@cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
