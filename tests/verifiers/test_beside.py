"""Moonmill beside verifiers in one Python environment: theirs played here, ours as one of theirs."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from moonmill.envs.adapters.verifiers.added import find

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import Moonmill from, without installing it."""
    package = tmp_path_factory.mktemp("both") / "moonmill"
    package.mkdir()
    folders = [ROOT / name for name in ("sandboxes", "envs", "agents", "trainer")]
    for source in [*(f for f in (ROOT / "sdk").iterdir() if f.name != "__pycache__"), *folders]:
        (package / source.name).symlink_to(source)
    return package.parent


def play(env: str, both: Path, cache: Path) -> list[Any]:
    added = find("moonmill-sums")
    assert added is not None, "run `make test-verifiers`, which adds it"
    environ = os.environ | {"PYTHONPATH": str(both), "XDG_CACHE_HOME": str(cache)}
    command = [added.python, "-P", str(HERE / "beside.py"), env]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_environment_of_theirs_is_played_in_our_process(both: Path, tmp_path: Path) -> None:
    assert play("verifiers:moonmill-sums", both, tmp_path) == ["HostWorker", "finished", 1.0, {"calls": 1.0}, None]


def test_an_environment_of_ours_is_one_of_theirs(both: Path, tmp_path: Path) -> None:
    worker, status, reward, metrics, error = play("verifiers:moonmill-calculator", both, tmp_path)
    assert (worker, status, reward, error) == ("HostWorker", "finished", 1.0, None)
    assert metrics == {"correct_reward": 1.0, "tool_calls": 1.0}
