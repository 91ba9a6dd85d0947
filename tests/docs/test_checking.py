"""docs/checking.md: the checks are those there are, and what it shows is what is printed."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

from moonmill.envs.checker import CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "checking.md").read_text()


def moonmill(command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    arguments = command.removeprefix("moonmill ").split()
    return subprocess.run(
        [sys.executable, "-m", "moonmill", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_table_says_what_each_check_says_of_itself() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == [(name, " ".join(inspect.getdoc(check).split())) for name, (check, _) in CHECKS.items()]


def test_the_finding_is_the_one_that_is_shown(tmp_path: Path) -> None:
    environment = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    (tmp_path / "cart.py").write_text(environment)
    done = moonmill("moonmill envs check cart.py:Cart", tmp_path)
    [shown] = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert done.returncode == 1
    assert done.stdout.replace(f"{tmp_path}/", "").startswith(shown)


def test_the_code_of_a_test_runs() -> None:
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], {})


def test_the_commands_for_records_work(tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    [commands] = [text for text in blocks if text.startswith("moonmill envs record")]
    for command in commands.splitlines():
        done = moonmill(command, tmp_path)
        assert done.returncode == 0, done.stderr
