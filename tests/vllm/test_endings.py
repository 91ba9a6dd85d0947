"""Whatever part of the real vLLM is killed, all of it ends, and nothing of it remains."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from moonmill.agents.processes import ServerProcess
from tests.vllm.conftest import START_SECONDS, gone, launcher_argv, parents, processes_below, shared_memory_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("victim", ["its worker", "its engine process", "its HTTP server", "the launcher"])
async def test_whatever_is_killed_nothing_remains(python: str, model_dir: Path, tmp_path: Path, victim: str) -> None:
    argv = launcher_argv(python, model_dir)
    async with ServerProcess("engine", argv, log_path=tmp_path / "log", start_timeout=START_SECONDS) as process:
        below = processes_below(process.pid)
        chain = [process.pid]
        while children := [p for p, parent in parents().items() if parent == chain[-1] and "tracker" not in below[p]]:
            chain += children
        assert len(chain) == 4, below
        shared = shared_memory_of(chain[1:])
        assert shared
        index = ["the launcher", "its HTTP server", "its engine process", "its worker"].index(victim)
        os.kill(chain[index], signal.SIGKILL)
        with anyio.fail_after(20):
            await process.wait_dead()
        assert process.returncode not in (0, None)
        await gone({*below})
        assert not any(file.exists() for file in shared)
        if victim != "the launcher":
            assert process.last_words().splitlines()[-1].startswith("error: ")
