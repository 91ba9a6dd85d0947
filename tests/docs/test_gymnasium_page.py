"""The page about Gymnasium runs as it stands."""

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "gymnasium.md").read_text()


def test_its_code_prints_what_it_tells_of(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import page"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, third, *prompt = done.stdout.splitlines()
    assert first.endswith(" ['calculate']")
    assert second == "1.0 True {'correct': 1.0} answered"
    assert third == "8 0.0 True"
    assert "An action is a whole number from 1 to 2." in prompt[1]


def test_its_environment_is_shown(tmp_path: Path) -> None:
    [command] = re.findall(r"moonmill (envs show .*)", PAGE)
    done = subprocess.run(
        [sys.executable, "-m", "moonmill", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "one of: left, down, right, up" in done.stdout
    assert done.stdout.count("\n[S]FFF\n") == 2


def test_its_script_crosses_the_lake_mostly(tmp_path: Path) -> None:
    [script] = re.findall(r"```python\n(# lake.py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "lake.py").write_text(script)
    [command] = re.findall(r"moonmill (eval .* --agent .*)", PAGE)
    done = subprocess.run(
        [sys.executable, "-m", "moonmill", *command.split(), "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 0.6 < json.loads(done.stdout)[0]["success"] < 0.9
