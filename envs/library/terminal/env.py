"""`terminal-v0`: do something to files in a shell; what they are in the end decides.

Each episode has files of its own in a sandbox of its own. `checking` says why only doing the job makes one pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from moonmill.envs import MultiTurnEnv, metric, reward
from moonmill.envs.episode_sandboxes import FurtherSandbox
from moonmill.envs.library.splits import check_split, checked_levels
from moonmill.envs.library.terminal.checking import Verdict, check
from moonmill.envs.library.terminal.jobs import FAMILIES
from moonmill.envs.library.terminal.problems import MAX_LEVEL, Wanted, generated_tasks
from moonmill.envs.sandbox_tools import BashTool
from moonmill.errors import ConfigError
from moonmill.sandboxes import SandboxLimits, SandboxSpec
from moonmill.types import Rollout, Task


class Terminal(BashTool, MultiTurnEnv):
    """Do something to files in a shell; what they are in the end decides.

    Args:
        levels: 1 for a job with files side by side, 2 for one with files in folders, 3 for two jobs with files in
            folders, one after the other; each is as likely as the others.
        families: which kinds of jobs there are; all of them unless given.
        image: the container image of the sandboxes, where the provider has images; it needs bash.
    """

    max_turns = 12
    max_seconds = 600.0
    max_scoring_seconds = 120.0
    reward_bounds = (0.0, 1.0)
    sandbox = SandboxSpec(limits=SandboxLimits(memory_mib=256, pids=64, disk_mib=32))
    system_prompt = (
        "Do what you are asked to the files in the working directory, with the tool `bash`. Change nothing else there, "
        "and leave no further files behind. When you are done, say so without calling a tool."
    )

    def __init__(
        self, levels: Sequence[int] = (1, 2, 3), families: Sequence[str] | None = None, image: str | None = None
    ) -> None:
        self.levels = checked_levels("terminal-v0", levels, MAX_LEVEL)
        self.families = [*FAMILIES] if families is None else _checked_families(families)
        if MAX_LEVEL in self.levels and len(self.families) == 1:
            raise ConfigError(
                f"terminal-v0: families is {families!r}, but level {MAX_LEVEL} takes jobs of two: add one, or "
                "leave the level out of levels"
            )
        self.image = image
        self.verdict: Verdict | None = None
        """What has become of the files, once that is known."""

    def tasks(self, split: str) -> Iterator[Task]:
        check_split("terminal-v0", split)
        yield from generated_tasks(self.task_rng(split), split, self.levels, self.families)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Begin with the files of the task."""
        self.sandbox = self._spec(self.task.info["files"])
        return super().reset(seed=seed, options=options)

    @reward
    def correct(self, rollout: Rollout) -> float:
        return float(self._checked().is_solved)

    @metric
    def as_wanted(self, rollout: Rollout) -> float:
        """The share of the files that are as they should be."""
        return self._checked().share

    @metric
    def superfluous_files(self, rollout: Rollout) -> float:
        return float(self._checked().superfluous)

    @metric
    def commands(self, rollout: Rollout) -> float:
        return float(sum(len(message.tool_calls) for message in rollout.messages))

    def _checked(self) -> Verdict:
        """The files are looked at once."""
        if self.verdict is None:
            self.verdict = check(self.sandbox, msgspec.convert(self.task.answer, Wanted), self._open)
        return self.verdict

    def _open(self, files: dict[str, str | bytes]) -> FurtherSandbox:
        # A script that ends the sandbox it runs in is no better for it.
        return self.open_sandbox(self._spec(files), may_be_lost=True)

    def _spec(self, files: dict[str, str | bytes]) -> SandboxSpec:
        return replace(type(self).sandbox, image=self.image, files=files)


def _checked_families(families: Sequence[str]) -> list[str]:
    try:
        chosen = [*dict.fromkeys(msgspec.convert(families, list[str]))]
    except msgspec.ValidationError:
        chosen = []
    if not chosen or not FAMILIES.keys() >= set(chosen):
        raise ConfigError(
            f"terminal-v0: families is {families!r}, but should be a list of some of {', '.join(FAMILIES)}"
        )
    return chosen
