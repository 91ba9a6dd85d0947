"""The trail of pages: its tasks, its expert, the starter policy, and the comparisons of the study."""

import os
import runpy
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moonmill.agents.rendering import load_renderer
from moonmill.config_io import load_config
from moonmill.envs import Taskset
from moonmill.registry import make
from moonmill.trainer.compared import Comparison, Curve, RunFigures
from moonmill.trainer.comparing import arms_of, plan
from moonmill.trainer.validate import AT_ONCE, require_valid
from moonmill.types import Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "study"
TRAIL = f"{EXAMPLE}/trail.py:Trail"


def env(**args: Any) -> Any:
    return make(TRAIL, **args)


def tasks(split: str, count: int, seed: int = 0, **args: Any) -> list[Task]:
    return [Taskset(lambda: env(**args), split, seed).task(number) for number in range(count)]


def module() -> dict[str, Any]:
    return vars(sys.modules[type(env()).__module__])


def played(task: Task, **args: Any) -> tuple[Any, float]:
    """The environment after the expert has played the task, and whether its answer is right."""
    one = env(**args)
    one.reset(options={"task": task})
    done = False
    while not done:
        message = module()["demonstrate"](one.messages)
        _, _, done, _, _ = one.step(message)
    return one, float(int(message.content) == task.answer)


def test_the_splits_share_no_task_and_levels_are_equally_frequent() -> None:
    train, held_out = tasks("train", 1000), tasks("eval", 300)
    assert not {t.prompt for t in train} & {t.prompt for t in held_out}
    for level in ("2", "3", "4", "5", "6"):
        assert 150 < sum(t.level == level for t in train) < 250


def test_a_pool_comes_again_with_the_same_ids() -> None:
    assert [t.id for t in tasks("train", 30, pool=10)] == [t.id for t in tasks("train", 10, pool=10)] * 3


def test_the_expert_finds_the_last_page_and_answers_with_what_is_wanted_of_four_in_five_tasks() -> None:
    results = [played(task) for task in tasks("train", 100)]
    assert 70 <= sum(right for _, right in results) <= 90
    for one, _ in results:
        shown = [m.content for m in one.messages if m.role == "tool"]
        assert [int(text.split()[0]) for text in shown] == list(range(int(one.task.level), -1, -1))


def test_a_page_off_the_trail_says_so_and_the_trail_goes_on_from_where_it_was_left() -> None:
    task = next(t for t in tasks("train", 20) if t.level == "3")
    first = int(str(task.prompt).split("/")[0])
    one = env()
    one.reset(options={"task": task})
    trail = [module()["page_at"](first, steps) for steps in range(4)]
    shown = []
    for number, page in enumerate([trail[0], trail[2], trail[0], trail[1], trail[2], trail[3], trail[3]]):
        call = module()["ToolCall"](str(number), "show", {"page": str(page)})
        one.step(module()["Message"]("assistant", tool_calls=(call,)))
        shown.append(one.messages[-1].content.split()[0])
    assert shown == ["3", "x", "x", "2", "1", "0", "x"]


@pytest.mark.parametrize("page", ["x", "-1", "1000", "", "²"])
def test_what_is_no_page_is_told(page: str) -> None:
    one = env()
    one.reset(options={"task": tasks("train", 1)[0]})
    call = module()["ToolCall"]("1", "show", {"page": page})
    one.step(module()["Message"]("assistant", tool_calls=(call,)))
    assert one.messages[-1].content == "error: a page is a number"


def test_the_config_is_for_the_policy_and_its_longest_episode() -> None:
    config = load_config(EXAMPLE / "trail.yaml")
    assert Path(config.model.path).resolve() == EXAMPLE / "policy"
    renderer = load_renderer(EXAMPLE / "policy")
    longest = 0
    for task in islice(tasks("train", 60), 60):
        one, _ = played(task)
        ids, _ = renderer.transcript(one.messages, one.tool_specs)
        longest = max(longest, len(ids))
    assert 200 < longest <= 255 < config.model.max_length


def test_recovery_by_hand() -> None:
    recovery = runpy.run_path(str(EXAMPLE / "recovery.py"))["recovery"]
    falls = [0.5] * 20 + [0.0] * 15 + [0.5] * 15
    # Nine tenths of 0.5 are reached by the stretch of ten steps that has nine of the new ones, 24 after the change.
    assert recovery(falls, 20) == (0.5, 0.0, 24)
    assert recovery(falls[:40], 20) == (0.5, 0.0, None)
    assert recovery([0.5] * 40, 20) == (0.5, 0.5, 0)
    # What is high at first, and falls later, has not recovered before it fell.
    assert recovery([0.5] * 30 + falls[20:], 20)[2] == 34


def test_a_run_that_recovery_cannot_tell_of_is_named_and_the_others_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    falls = (0.5,) * 20 + (0.0,) * 15 + (0.5,) * 15

    def run(arm: str, seed: int, reward: tuple[float, ...], status: str = "finished") -> RunFigures:
        along = tuple(float(step) for step in range(1, len(reward) + 1))
        return RunFigures(arm, seed, f"{arm}-{seed}", status, curve=Curve(along, along, along, reward))

    lost = [run("a", 2, falls[:25], "failed"), RunFigures("b", 1, "b-1", "missing")]
    runs = (run("a", 1, falls), *lost, run("b", 2, falls), run("c", 1, falls, "failed"))
    path = tmp_path / "compare.json"
    path.write_bytes(msgspec.json.encode(Comparison(50, (), runs)))
    main = runpy.run_path(str(EXAMPLE / "recovery.py"))["main"]
    main(path, 20)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed if line.endswith(" 24")] == [
        [arm, seed, "0.500", "0.000", "24"] for arm, seed in (("a", "1"), ("b", "2"))
    ]
    assert "failed: 20 steps before the change and 5 after it are too few" in printed[2]
    assert "missing: 0 steps" in printed[3]
    assert printed[5].endswith("24  failed")
    assert printed[6:] == [
        "a: 1 of 2 runs were finished and recovered",
        "b: 1 of 2 runs were finished and recovered",
        "c: 0 of 1 runs were finished and recovered",
    ]
    main(path, 45)
    assert "45 steps before the change and 5 after it are too few" in capsys.readouterr().out


@pytest.mark.parametrize("script", ["study.sh", "flip.sh"])
def test_the_arms_of_the_comparisons_make_configs(script: str, tmp_path: Path) -> None:
    stand_in = tmp_path / "bin" / "moonmill"
    stand_in.parent.mkdir()
    stand_in.write_text("#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done\n")
    stand_in.chmod(0o755)
    env = os.environ | {"PATH": f"{stand_in.parent}:{os.environ['PATH']}", "OUT": "out"}
    argv = ["sh", str(EXAMPLE / script), "--set", "train.checkpoint_every=50"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30, check=True)
    words = done.stdout.split("\0")
    assert words[0] == "compare"
    options = [*pairwise(words)]
    assert ("--out", "out") in options
    assert ("--set", "train.checkpoint_every=50") in options
    arms = arms_of(None, [value for option, value in options if option == "--vary"])
    jobs = plan(lambda own: load_config(Path(words[1]), own), arms, 1, Path("runs"))
    assert len(jobs) == len(arms) >= 2
    for job in jobs:
        require_valid(job.config, AT_ONCE)
