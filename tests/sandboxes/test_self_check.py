"""The self-check: it holds for our providers, and is fair to all."""

from collections.abc import Mapping
from functools import partial

import anyio
import pytest

from moonmill.errors import ConfigError
from moonmill.sandboxes import SandboxUnavailableError
from moonmill.sandboxes.local import LocalProvider
from moonmill.sandboxes.providers import make_provider
from moonmill.sandboxes.testing import (
    CASES,
    BrokenPromiseError,
    Case,
    Lab,
    NotShownError,
    Outcome,
    check,
    choose,
)
from moonmill.sandboxes.testing.traces import layers_of
from tests.sandboxes.self_check import outcomes_of


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def outcomes(request: pytest.FixtureRequest) -> Mapping[str, Outcome]:
    """What has become of all cases with `local`, on one event loop."""
    return outcomes_of(partial(make_provider, "local"), backend=request.param)


@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_it_holds_for_local(case: str, outcomes: Mapping[str, Outcome]) -> None:
    assert (outcomes[case].status, outcomes[case].detail) == ("holds", "")


def test_the_names_of_cases_are_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 50


def test_cases_are_chosen_by_name_topic_and_promise() -> None:
    assert [case.name for case in choose(["stdin/large"])] == ["stdin/large"]
    assert {case.name for case in choose(["large"])} == {"stdin/large", "files/large"}
    assert {case.topic for case in choose(["stdin", "user"])} == {"stdin", "processes"}
    assert choose([]) == CASES
    with pytest.raises(ConfigError, match="'timeouts': did you mean time-outs"):
        choose(["timeouts"])


def outcome_of(case: Case) -> Outcome:
    return anyio.run(partial(check, LocalProvider, cases=[case])).outcomes[0]


async def _hangs(lab: Lab) -> None:
    await anyio.sleep(60)


async def _is_broken(lab: Lab) -> None:
    raise BrokenPromiseError("in this way,\n  that is")


async def _fails(lab: Lab) -> None:
    async with anyio.create_task_group():
        raise ZeroDivisionError("by zero")


async def _cannot_be_shown(lab: Lab) -> None:
    raise NotShownError("there is no such thing here")


@pytest.mark.parametrize(
    ("function", "status", "detail"),
    [
        (_hangs, "broken", "it took longer than 0.2 s"),
        (_is_broken, "broken", "in this way, that is"),
        (_fails, "broken", "ZeroDivisionError: by zero"),
        (_cannot_be_shown, "not shown", "there is no such thing here"),
    ],
)
def test_whatever_a_case_does_is_an_outcome(function: object, status: str, detail: str) -> None:
    outcome = outcome_of(Case("a/case", "a", "it holds", function, seconds=0.2))  # type: ignore[arg-type]
    assert (outcome.status, outcome.detail) == (status, detail)


def test_a_sandbox_is_replaced_where_a_case_was_broken_in_it() -> None:
    async def breaks(lab: Lab) -> None:
        await (await lab.sandbox()).write_file("left", b"")
        raise BrokenPromiseError("on purpose")

    async def looks(lab: Lab) -> None:
        if await (await lab.sandbox()).list_files():
            raise BrokenPromiseError("it is the same")

    cases = [Case("a/breaks", "a", "", breaks), Case("a/looks", "a", "", looks)]
    report = anyio.run(partial(check, LocalProvider, cases=cases))
    assert [outcome.status for outcome in report.outcomes] == ["broken", "holds"]


def test_a_provider_that_cannot_be_used_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
        anyio.run(check, LocalProvider)


def mounts(**layers: str) -> str:
    """As in `mountinfo`: overlays by where they are mounted."""
    lines = [
        f"30 1 0:26 / {place.replace('_', '/')} rw - overlay overlay rw,lowerdir=/l,upperdir={layer},workdir=/w"
        for place, layer in layers.items()
    ]
    return "\n".join([*lines, "31 1 0:27 / /proc rw - proc proc rw"])


def test_what_other_containers_write_to_is_no_trace_of_a_sandbox() -> None:
    host = mounts(_docker_a="/layers/a", _docker_b="/layers/b")
    container = mounts(_="/layers/a")
    assert layers_of(container, host) == {"/layers/a"}
    assert layers_of(host, host) == set(), "a process that shares the host's mounts"
    assert layers_of(mounts(_work="/tmp/mine", _docker_b="/layers/b"), host) == {"/tmp/mine"}
    ours = mounts(_="/layers/us", _docker_a="/layers/a")
    assert layers_of(ours, ours) == layers_of(mounts(_usr="/layers/us"), ours) == set(), (
        "we are in a container ourselves"
    )
