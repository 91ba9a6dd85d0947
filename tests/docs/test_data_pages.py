"""What docs/math.md and docs/reasoning-gym.md show runs, and what they list is what there is."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moonmill import plain_yaml
from moonmill.envs.adapters.reasoning_gym import LEFT_OUT
from moonmill.registry import make

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["math.md", "reasoning-gym.md"])
def test_the_code_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (tmp_path / "shown.py").write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, "shown.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_its_script_is_right(tmp_path: Path) -> None:
    page = (DOCS / "reasoning-gym.md").read_text()
    [script] = re.findall(r"```python\n(# adding.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "adding.py").write_text(script)
    [command] = re.findall(r"moonmill (eval .* --agent .*)", page)
    done = subprocess.run(
        [sys.executable, "-m", "moonmill", *command.split(), "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["success"] == 1.0


def test_the_mixture_can_be_made() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", (DOCS / "reasoning-gym.md").read_text(), re.DOTALL)
    env = plain_yaml.parse(block, "page").data["env"]
    assert next(iter(make(env["id"], **env["args"]).tasks("train"))).level


def test_what_is_left_out_is_told_with_its_reason() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (it.*) \|$", (DOCS / "reasoning-gym.md").read_text(), re.MULTILINE)
    assert {name: why.replace("`", "") for name, why in rows} == LEFT_OUT
