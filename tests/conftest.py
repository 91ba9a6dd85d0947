"""For all tests."""

import pytest

# What is asserted in it is told as in a test's own module.
pytest.register_assert_rewrite("tests.protocol")
