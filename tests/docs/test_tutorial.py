"""docs/tutorial.md is followed to the letter: every command is run, in its order, in a folder beside the clone.

Only the training is shorter than on the page, and `pip` installs without a network, into an environment of the test's.
"""

import os
import re
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
SHORTER = {"steps: 30": "steps: 2", "tasks: 200": "tasks: 16", "batch_rollouts: 32": "batch_rollouts: 16"}
_SECONDS = 300


class Done:
    """A command and what it printed."""

    def __init__(self, command: str, printed: str) -> None:
        self.command = command
        self.printed = printed


def blocks() -> list[tuple[str, str]]:
    """Language and text of each block of the page."""
    return re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    """Each command, and what is typed while it runs: the lines with `>` of the block behind it."""
    found = blocks()
    for (language, text), (_, behind) in zip(found, [*found[1:], ("", "")], strict=True):
        if language != "bash":
            continue
        typed = "".join(line[2:] + "\n" for line in behind.splitlines() if line.startswith("> "))
        for line in text.splitlines():
            yield line, typed


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """What each command printed, by the command."""
    here = tmp_path_factory.mktemp("here")
    folder = here / "first"
    folder.mkdir()
    (here / "moonmill").symlink_to(ROOT)
    [(_, config)] = [block for block in blocks() if block[0] == "yaml"]
    for said, shorter in SHORTER.items():
        assert said in config
        config = config.replace(said, shorter)
    (folder / "tiny.yaml").write_text(config)
    environment = {**os.environ, "PATH": f"{_environment(here)}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    done = {}
    for command, typed in commands():
        if command.startswith("source "):
            continue  # the environment of the test stands for the clone's
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            input=typed,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
        done[command] = Done(command, ran.stdout)
    return done


def _environment(here: Path) -> Path:
    """An environment that has what this one has; returns its folder of commands."""
    venv.create(here / "env")
    [packages] = (here / "env").glob("lib/python*/site-packages")
    (packages / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name, options in {"moonmill": "", "pytest": "", "pip": " --no-build-isolation --no-index"}.items():
        script = here / "env" / "bin" / name
        script.write_text(f'#!/bin/sh\nfirst=$1; shift\nexec {here}/env/bin/python -m {name} "$first"{options} "$@"\n')
        script.chmod(0o755)
    return here / "env" / "bin"


def test_every_command_of_the_page_works(followed: dict[str, Done]) -> None:
    kinds = {command.split(" sums")[0] for command in followed}
    assert {"moonmill envs new", "moonmill envs check", "moonmill envs play", "python -m pytest"} <= kinds
    assert len(followed) == 14


def test_the_class_on_the_page_is_that_of_the_package(followed: dict[str, Done]) -> None:
    template = (ROOT / "sdk" / "cli" / "template" / "environment.py.txt").read_text()
    known = {line.partition("#")[0].strip() for line in template.replace("$class_name", "Sums").splitlines()}
    [(_, code)] = [block for block in blocks() if block[0] == "python"]
    assert [line for line in code.splitlines() if line.strip() not in known] == []


@pytest.mark.parametrize("command", ["moonmill envs check sums-v0", "moonmill envs play sums-v0"])
def test_what_a_command_prints_is_what_the_page_says(command: str, followed: dict[str, Done]) -> None:
    [said] = re.findall(rf"^{command}\n```\n\n```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    wanted = [line for line in said.splitlines() if not line.startswith("> ")]
    printed = followed[command].printed.splitlines()
    assert [line for line in printed if line in wanted] == wanted


def test_the_policy_is_evaluated_before_and_after(followed: dict[str, Done]) -> None:
    printed = followed["moonmill train tiny.yaml"].printed
    assert [line.split()[0] for line in printed.splitlines() if re.match("before|after", line)][:2] == [
        "before",
        "after",
    ]


def test_what_training_has_logged_is_replayed(followed: dict[str, Done]) -> None:
    printed = followed["moonmill envs replay runs/tiny --rollout 00000000"].printed
    assert printed.splitlines()[-1] == "1 as recorded, 0 otherwise, 0 passed over"


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/tutorial.md)" in (ROOT / "README.md").read_text()
