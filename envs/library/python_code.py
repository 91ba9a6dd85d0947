"""`python-code-v0`: write a Python function, try it out, submit it.

The tests are held back. They are run on what was submitted in a fresh sandbox, which neither knows the answers nor can
be reached from the one in which the model tries things out; `coding.grading` says what holds there.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from moonmill.envs import MultiTurnEnv, SandboxService, metric, reward, tool
from moonmill.envs.library import coding
from moonmill.envs.library.coding import humaneval
from moonmill.envs.library.coding.generated import MAX_LEVEL, generated_tasks
from moonmill.envs.library.coding.grading import Grade, Grader, Tests
from moonmill.envs.library.splits import check_split, checked_levels
from moonmill.envs.sandbox_tools import PythonTool
from moonmill.errors import ConfigError
from moonmill.sandboxes import SandboxLimits, SandboxSpec
from moonmill.sandboxes.providers import UNSAFE
from moonmill.types import Rollout, Status, Task

Dataset = Literal["generated", "humaneval"]
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


class PythonCode(PythonTool, MultiTurnEnv):
    """Write a Python function, try it out, submit it; tests that are held back decide.

    Args:
        dataset: `generated` makes tasks without end; `humaneval` has the 164 problems of HumanEval, for evaluation.
        levels: of generated tasks, the numbers of steps that the function takes, from 1 to 4; each is as likely as the
            others. All of them unless given.
        partial: reward the share of the tests that pass, and not only all of them.
        image: the container image of the sandboxes, where the provider has images; it needs python3.
    """

    max_turns = 8
    max_seconds = 600.0
    max_scoring_seconds = 300.0
    python_seconds = 30
    reward_bounds = (0.0, 1.0)
    sandbox = SandboxSpec(limits=SandboxLimits(memory_mib=512, pids=64, disk_mib=64))
    system_prompt = (
        "Write the Python function you are asked for. You can try it out with the tool `python`. When it is right, "
        "give it to the tool `submit`, whole: tests that you do not see are then run on it, once."
    )

    def __init__(
        self,
        dataset: Dataset = "generated",
        levels: Sequence[int] | None = None,
        partial: bool = False,
        image: str | None = None,
    ) -> None:
        if dataset not in get_args(Dataset):
            raise ConfigError(f"python-code-v0: dataset is {dataset!r}, but should be {' or '.join(get_args(Dataset))}")
        self.dataset = dataset
        self.levels = _checked_levels(dataset, levels)
        self.partial = partial
        if image is not None:
            self.sandbox = replace(type(self).sandbox, image=image)
        self.code: str | None = None
        """What was submitted."""
        self.grade: Grade | None = None
        """What it is worth, once that is known."""

    def tasks(self, split: str) -> Iterator[Task]:
        if self.dataset == "humaneval":
            if split != "eval":
                raise ConfigError(f"HumanEval is there to evaluate: it has the split eval alone, and no {split!r}")
            yield from map(humaneval.task_of, humaneval.problems())
            return
        check_split("python-code-v0", split)
        yield from generated_tasks(self.task_rng(split), split, self.levels)

    @tool
    def submit(self, code: str) -> str:
        """Hand in your function. This ends the task.

        Args:
            code: the whole function, with what it needs, such as imports
        """
        self.code = code
        self.finish()
        return "submitted"

    @reward
    def correct(self, rollout: Rollout) -> float:
        grade = self._grade_of(rollout)
        if grade is None:
            return 0.0
        return grade.share if self.partial else float(grade.is_solved)

    @metric
    def tests_passed(self, rollout: Rollout) -> float:
        grade = self._grade_of(rollout)
        return 0.0 if grade is None else grade.share

    @metric
    def submitted(self, rollout: Rollout) -> float:
        return float(self._submission(rollout) is not None)

    @metric
    def runs(self, rollout: Rollout) -> float:
        return float(sum(call.name == "python" for message in rollout.messages for call in message.tool_calls))

    def _grade_of(self, rollout: Rollout) -> Grade | None:
        """None where nothing was submitted. The tests are run once."""
        code = self._submission(rollout)
        if self.grade is None and code is not None:
            self.grade = self._grader().grade(msgspec.convert(self.task.answer, Tests), code)
        return self.grade

    def _submission(self, rollout: Rollout) -> str | None:
        """What was submitted, or else the last block of code in the answer."""
        if self.code is not None or rollout.status is not Status.FINISHED:
            return self.code
        blocks: list[str] = _BLOCK.findall(rollout.final_text())
        return blocks[-1] if blocks else None

    def _grader(self) -> Grader:
        # A submission that ends the sandbox it runs in is no better for it.
        open_sandbox = partial(self.open_sandbox, may_be_lost=True)
        if SandboxService.current().config.provider == UNSAFE:  # it shows all of this machine, the answers too
            return Grader(open_sandbox, (), ())
        data = humaneval.data_file() if self.dataset == "humaneval" else Path(coding.__file__)
        return Grader(open_sandbox, (str(data),), (humaneval.PACKAGE, "moonmill"))


def _checked_levels(dataset: Dataset, levels: Sequence[int] | None) -> tuple[int, ...]:
    if levels is None:
        return tuple(range(1, MAX_LEVEL + 1))
    if dataset != "generated":
        raise ConfigError(f"python-code-v0: {dataset} has no levels, and levels is {levels!r}: leave it out")
    return checked_levels("python-code-v0", levels, MAX_LEVEL)
