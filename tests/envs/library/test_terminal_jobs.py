"""The jobs of the terminal environment: what they say, what becomes of the files, and what an expert runs."""

import re
import stat
import subprocess
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from moonmill.envs.library.splits import split_of
from moonmill.envs.library.terminal.expert import demonstrate
from moonmill.envs.library.terminal.files import PLAIN_MODE, make_files
from moonmill.envs.library.terminal.jobs import FAMILIES, fill
from moonmill.envs.library.terminal.problems import generated_tasks
from moonmill.errors import ConfigError
from moonmill.registry import make
from moonmill.types import Task
from tests.envs.library.playing import tasks

ID = "terminal-v0"


def drawn(family: str, split: str = "train", level: int = 2, count: int = 1) -> list[Task]:
    return [*islice(generated_tasks(Random(0), split, [level], [family]), count)]


def command_of(task: Task) -> str:
    arguments = demonstrate(task.messages()).tool_calls[0].arguments
    assert isinstance(arguments, dict)
    return str(arguments["command"])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_experts_command_does_what_the_job_says(family: str, tmp_path: Path) -> None:
    for number, task in enumerate(drawn(family, level=1, count=2) + drawn(family, count=4)):
        folder = tmp_path / str(number)
        for path, content in task.info["files"].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)
        subprocess.run(["bash", "-c", f"umask 022; {command_of(task)}"], cwd=folder, check=True, timeout=10)
        there = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        assert there.keys() == task.answer.files.keys()
        for path, entry in task.answer.files.items():
            lines = there[path].read_text().rstrip().split("\n")
            if entry.content is not None:
                assert sorted(lines) == sorted(entry.content.rstrip().split("\n"))
            if entry.mode is not None:
                assert stat.S_IMODE(there[path].stat().st_mode) == entry.mode
        for run in task.answer.runs:
            for path, content in run.files.items():
                (folder / "tried" / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / "tried" / path).write_text(content)
            done = subprocess.run(
                ["bash", run.script, "tried"], cwd=folder, capture_output=True, text=True, check=False
            )
            assert done.stdout.strip() == run.printed
            subprocess.run(["rm", "-r", "tried"], cwd=folder, check=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_job_changes_something_and_both_splits_have_jobs_of_each_family(family: str) -> None:
    for split in ("train", "eval"):
        for task in drawn(family, split, count=10):
            before = task.info["files"]
            after = {path: entry.content for path, entry in task.answer.files.items()}
            modes = {entry.mode for entry in task.answer.files.values()}
            assert after != before or len(modes) > 1
            assert split_of(str(task.prompt)) == split


def test_the_same_seed_makes_the_same_tasks_and_no_words_are_in_both_splits() -> None:
    assert tasks(ID, "train", 30) == tasks(ID, "train", 30) != tasks(ID, "train", 30, seed=1)
    train, held_out = ({t.prompt for s in range(3) for t in tasks(ID, x, 50, s)} for x in ("train", "eval"))
    assert not train & held_out


def test_levels_are_files_side_by_side_then_in_folders_then_two_jobs() -> None:
    found = tasks(ID, "train", 60)
    assert {t.level for t in found} == {"1", "2", "3"}
    for task in found:
        assert any("/" in path for path in task.info["files"]) == (task.level != "1")
        assert len(task.info["families"]) == (2 if task.level == "3" else 1)
        assert bool(re.match(r"1\. .*\n2\. .*", str(task.prompt))) == (task.level == "3")
    assert all(t.info["families"][0] != "script" for t in found if t.level == "3")


def test_the_second_job_is_about_what_the_first_has_left() -> None:
    for task in islice(generated_tasks(Random(1), "train", [3], ["rename", "gather"]), 20):
        first, second = (FAMILIES[name] for name in task.info["families"])
        assert first is not second
        renamed = re.search(r"`\.(\w+)`, so that they end in `\.(\w+)` instead", str(task.prompt))
        assert renamed is not None
        assert not [path for path in task.answer.files if path.endswith(f".{renamed[1]}")]


def test_no_job_of_two_is_done_already() -> None:
    for task in islice(generated_tasks(Random(2), "train", [3], ["edit", "rename"]), 40):
        changed = re.search("give the key `(.*)` the value `(.*)`", str(task.prompt))
        assert changed is not None
        assert any(f"{changed[1]}={changed[2]}" in (entry.content or "") for entry in task.answer.files.values())


def test_files_have_names_of_their_own_wherever_they_are() -> None:
    for seed in range(50):
        names = [path.rpartition("/")[2] for path in make_files(Random(seed), nested=True)]
        assert len(names) == len({*names})


def test_modes_count_only_where_a_job_is_about_them() -> None:
    [task] = drawn("permissions")
    modes = {path: entry.mode for path, entry in task.answer.files.items()}
    assert set(modes.values()) == {PLAIN_MODE, *modes.values()} - {None}
    assert {entry.mode for entry in drawn("rename")[0].answer.files.values()} == {None}


def test_only_fields_are_filled_in() -> None:
    assert fill("${x%.{kind}} {} {other}", {"kind": "txt"}) == "${x%.txt} {} {other}"


def test_arguments_that_do_not_fit_are_refused() -> None:
    for families in ([], ["finds"], "find", [1], 3):
        with pytest.raises(ConfigError, match=r"families is .*, but should be a list of some of find, count, "):
            make(ID, families=families)
    with pytest.raises(ConfigError, match="level 3 takes jobs of two"):
        make(ID, families=["find"])
    make(ID, families=["find"], levels=[1, 2])
    with pytest.raises(ConfigError, match="whole numbers from 1 to 3"):
        make(ID, levels=[4])
    with pytest.raises(ConfigError, match="it has train and eval"):
        tasks(ID, "test", 1)
