"""For all tests."""

from pathlib import Path

import hypothesis
import pytest

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("moonmill", deadline=None)
hypothesis.settings.load_profile("moonmill")

# What is asserted in it is told as in a test's own module.
pytest.register_assert_rewrite("tests.protocol")

_HERE = Path(__file__).parent
_MEET_SANDBOXES = (
    "sandboxes/*",
    "envs/test_sandbox*",
    "envs/library/coding/*",
    "envs/library/test_python_code.py",
    "envs/library/test_terminal.py",
    "examples/test_python_code.py",
    "examples/test_rtx5090_code.py",
    "integration/test_sandbox*",
    "sdk/test_cli_sandbox.py",
)
"""Tests that need bubblewrap, and some of them a Docker daemon."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(_HERE) and item.path.relative_to(_HERE).match(p) for p in _MEET_SANDBOXES):
            item.add_marker(pytest.mark.sandboxes)
