"""The page about wrappers runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "wrappers.md").read_text()


def test_its_code_prints_what_the_wrappers_make_of_the_environment(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "12 (0.0, 0.25)\n"


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_its_configs_make_environments(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moonmill.config_io import load_config
    from moonmill.envs import Taskset
    from moonmill.envs.wrappers import factory_of

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(f"{block}model: {{path: p}}\n")
    factory = factory_of(load_config(tmp_path / "a.yaml").env)
    levels = [Taskset(factory, "train", 0).task(i).level for i in range(8)]
    assert (levels == ["1"] * 8) == ("curriculum" in block)


def test_its_table_names_every_type() -> None:
    from moonmill.envs.wrappers import _CLASSES

    table = PAGE.partition("| `type` | |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))
    assert sorted(named) == sorted(config.__struct_config__.tag for config in _CLASSES)
