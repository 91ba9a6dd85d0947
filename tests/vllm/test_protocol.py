"""The real vLLM keeps the protocol that the trainer relies on, as the embedded engine does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from moonmill.agents.processes import ServerProcess
from tests.protocol import *  # noqa: F403
from tests.protocol import Engine
from tests.vllm.conftest import MAX_BATCH, MAX_LENGTH, RANK, START_SECONDS, launcher_argv


@pytest.fixture(scope="module")
def engine(
    python: str, model_dir: Path, adapters: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    log = tmp_path_factory.mktemp("vllm") / "engine.log"
    argv = launcher_argv(python, model_dir, "--max-loras", "2", "--max-lora-rank", str(RANK))
    process = ServerProcess("engine", argv, log_path=log, start_timeout=START_SECONDS)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(process):
        yield Engine(process.base_url, MAX_LENGTH, MAX_BATCH, model_dir, adapters)
