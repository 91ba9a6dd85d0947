"""Many episodes with sandboxes at once, in a process of their own, and what they leave behind: nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "bench_coding.py"


def test_200_episodes_at_once_leave_nothing_behind() -> None:
    # Each has a sandbox, half of them leave processes in it that do not want to end, and most are graded in another.
    argv = [sys.executable, str(SCRIPT), "--episodes", "200", "--at-once", "200", "--json"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["left"] == {}
    assert result["after"]["processes"] == result["after"]["temporary files"] == result["after"]["control groups"] == 0
