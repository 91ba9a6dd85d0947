"""The self-check holds for docker, on a real daemon: a file of its own, to be run beside that of `local`."""

from collections.abc import Mapping
from functools import partial

import pytest

from moonmill.sandboxes.providers import make_provider
from moonmill.sandboxes.testing import CASES, Outcome
from tests.sandboxes.containers import IMAGE
from tests.sandboxes.self_check import outcomes_of


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, Outcome]:
    """What has become of all cases."""
    return outcomes_of(partial(make_provider, "docker"), image=IMAGE)


@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_it_holds_for_docker(case: str, outcomes: Mapping[str, Outcome]) -> None:
    assert (outcomes[case].status, outcomes[case].detail) == ("holds", "")
