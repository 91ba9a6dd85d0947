"""What is installed, and what importing it costs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import moonmill

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_INSTALLED = tuple(re.findall(r"-e '\.\[(.*)\]'", (ROOT / "Makefile").read_text())[0].split(","))
"""The extras that `make install` brings."""
HEAVY = ("torch", "transformers", "renderers", "httpx", "yaml", "rich", "anyio", "asyncio", "numpy", "starlette")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_packages_are_the_folders_with_code_in_them():
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]
    found = set()
    for name, folder in mapping.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((name, *inner)))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_folder_with_modules_is_a_package():
    for folder in set(PROJECT["tool"]["setuptools"]["package-dir"].values()):
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), f"{module.parent} has modules and no __init__.py"


def test_the_templates_of_a_new_environment_are_in_the_wheel():
    code = (
        "from setuptools.dist import Distribution; dist = Distribution(); dist.parse_config_files();"
        "dist.include_package_data = False;"  # what a checkout tracks does not count
        "build = dist.get_command_obj('build_py'); build.ensure_finalized();"
        "print(*(name for package, _, _, names in build.data_files if package == 'moonmill.cli' for name in names))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    there = {path.relative_to(ROOT / "sdk" / "cli") for path in (ROOT / "sdk" / "cli" / "template").iterdir()}
    assert {Path(name) for name in done.stdout.split()} == there
    assert len(there) == 5


def test_the_version_is_the_same_everywhere():
    assert moonmill.__version__ == PROJECT["project"]["version"]


def test_every_dependency_is_pinned_by_the_constraints():
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [
        *PROJECT["project"]["dependencies"],
        *(r for extra in _INSTALLED for r in extras[extra]),
    ]
    pinned = {
        _normal(line.split("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    assert {_normal(re.split(r"[<>=!~\[ ]", r)[0]) for r in wanted} <= pinned
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_importing_moonmill_takes_less_than_150_ms():
    code = "import time; t = time.perf_counter(); import moonmill; print(time.perf_counter() - t)"
    assert any(float(python(code)) < 0.150 for _ in range(15)), "the quickest of 15 took longer"


def test_importing_moonmill_brings_in_nothing_heavy():
    assert set(HEAVY) & set(_modules("import moonmill")) == set()


def test_the_entry_point_is_there_before_anything_of_ours_but_the_signals() -> None:
    ours = {name for name in _modules("import moonmill.cli") if name.startswith("moonmill")}
    assert ours == {"moonmill", "moonmill.cli", "moonmill.signals"}
    assert {"click", "msgspec"}.isdisjoint(_modules("import moonmill.cli"))


@pytest.mark.parametrize("heavy", ["torch", "transformers", "renderers", "httpx"])
def test_writing_an_environment_brings_in_nothing_heavy(heavy):
    assert heavy not in _modules("import moonmill.envs; from moonmill import MultiTurnEnv, tool, reward, metric, stop")


def _modules(code: str) -> list[str]:
    loaded = python(f"import sys, json; {code}; print(json.dumps(sorted(sys.modules)))")
    return [str(name) for name in json.loads(loaded)]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
