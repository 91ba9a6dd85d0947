"""The docs tell the truth: pages made from the source are up to date, links lead somewhere, the README's code runs."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])


def test_the_configuration_page_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_configuration.py"))["page"]()
    assert (ROOT / "docs" / "configuration.md").read_text() == made, "run: python docs/make_configuration.py"


def test_every_key_of_the_config_is_explained() -> None:
    rows = re.findall(r"^\| `\w+` \|.*$", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE)
    assert len(rows) > 60
    assert [row for row in rows if not row.split("|")[-2].strip()] == []


def test_a_preset_is_what_the_configuration_page_writes_out() -> None:
    from moonmill import plain_yaml
    from moonmill.config_io import make_config
    from moonmill.trainer.algorithms.presets import PRESETS, resolve

    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)
    written = {block["algorithm"]["preset"]: block for block in (plain_yaml.parse(b, "page").data for b in blocks)}
    assert written.keys() == PRESETS.keys()
    for name, block in written.items():
        data = {"env": {"id": "e-v0"}, "model": {"path": "p"}, **block}
        algorithm = make_config(data, source="page", folder=ROOT).algorithm
        assert resolve(algorithm, 64) == PRESETS[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_environment_is_played_by_hand_as_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    environment, by_hand = blocks[:2]
    (tmp_path / "unit_converter.py").write_text(environment)
    (tmp_path / "by_hand.py").write_text(by_hand + "\nprint(observation[0].content, terminated)")
    done = subprocess.run([sys.executable, "by_hand.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["26.098", "False"]


def test_the_readme_config_is_valid(tmp_path: Path) -> None:
    from moonmill.config_io import load_config

    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "calculator.yaml").write_text(blocks[0])
    assert load_config(tmp_path / "calculator.yaml").env.id == "calculator-v0"


def test_the_authoring_guide_runs_as_it_stands(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "environments.md").read_text(), re.DOTALL)
    (tmp_path / "guide.py").write_text("\n\n".join(blocks) + "\nprint(rollout.status, rollout.stop_reason)\n")
    done = subprocess.run([sys.executable, "guide.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["finished", "stopped"]
