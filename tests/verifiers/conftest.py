"""What the tests of verifiers share: `make test-verifiers` adds the environments that they play."""

from pathlib import Path

import pytest

from tests.integration.conftest import moonmill as moonmill

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.verifiers)
