"""How requests are carried from verifiers' process, in each of its versions."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from moonmill.envs.adapters.verifiers.added import find
from moonmill.installing import without_ours

HERE = Path(__file__).parent
INSIDE = HERE.parents[1] / "envs" / "adapters" / "verifiers" / "inside"


@pytest.fixture(scope="module", params=["moonmill-sums", "moonmill-sums-v0"])
def told(request: pytest.FixtureRequest) -> Any:
    added = find(request.param)
    assert added is not None, "run `make test-verifiers`, which adds it"
    command = [added.python, "-P", str(HERE / "carried.py"), str(INSIDE)]
    done = subprocess.run(
        command, env=without_ours(os.environ), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def test_the_client_that_verifiers_asks_our_model_through_is_the_light_one_and_no_other_is(told: Any) -> None:
    assert told["carried"] == [True, False]


def test_requests_and_replies_arrive_as_they_are_on_one_connection(told: Any) -> None:
    assert told["echoed"] == [[200, "ü", "here"], [302, "ü", "here"], [503, "ü", "here"]]
    assert told["connections"] == 1


def test_as_many_go_on_at_once_as_are_asked(told: Any) -> None:
    assert told["at once"] == [200] * 300


def test_faults_are_those_that_verifiers_expects_of_httpx(told: Any) -> None:
    assert (told["cut"], told["gone"]) == ("ReadError", "ConnectError")
