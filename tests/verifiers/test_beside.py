"""Moonmill beside verifiers in one Python environment: theirs played here, ours as one of theirs."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from moonmill.envs.adapters.verifiers.added import find
from moonmill.installing import without_ours

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What came of both, in one process: verifiers takes seconds to import."""
    added = find("moonmill-sums")
    assert added is not None, "run `make test-verifiers`, which adds it"
    # Moonmill can be imported there without being installed, and nothing was added as far as it can see.
    folder = tmp_path_factory.mktemp("both")
    package = folder / "moonmill"
    package.mkdir()
    folders = [ROOT / name for name in ("sandboxes", "envs", "agents", "trainer")]
    for source in [*(f for f in (ROOT / "sdk").iterdir() if f.name != "__pycache__"), *folders]:
        (package / source.name).symlink_to(source)
    environ = without_ours(os.environ) | {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder)}
    envs = ["verifiers:moonmill-sums", "verifiers:moonmill-calculator"]
    command = [added.python, "-P", str(HERE / "beside.py"), *envs]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_environment_of_theirs_is_played_in_our_process(played: list[Any]) -> None:
    assert played[0] == ["HostWorker", "finished", 1.0, {"calls": 1.0}, None]


def test_an_environment_of_ours_is_one_of_theirs(played: list[Any]) -> None:
    assert played[1] == ["HostWorker", "finished", 1.0, {"correct_reward": 1.0, "tool_calls": 1.0}, None]
