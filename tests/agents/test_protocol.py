"""The embedded engine keeps the protocol that the trainer relies on."""

from pathlib import Path

import pytest

from moonmill.agents.processes import ServerProcess
from tests.agents.conftest import MAX_BATCH, MAX_LENGTH
from tests.protocol import *  # noqa: F403
from tests.protocol import Engine


@pytest.fixture(scope="module")
def engine(engine: ServerProcess, model_dir: Path, adapters: list[Path]) -> Engine:
    return Engine(engine.base_url, MAX_LENGTH, MAX_BATCH, model_dir, adapters)
