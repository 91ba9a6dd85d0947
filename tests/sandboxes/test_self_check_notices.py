"""The self-check notices when a protection is missing, and is not content with what is claimed."""

from collections.abc import Mapping
from functools import partial

import pytest

from moonmill.sandboxes.providers import make_provider
from moonmill.sandboxes.testing import CASES
from tests.sandboxes.self_check import run
from tests.sandboxes.weakened import PROTECTIONS, Pretender, Weakened

_NOTICED: Mapping[str, str] = {
    "network": "tcp udp network/unix-sockets interfaces one-port-for-two",
    "processes": "host-is-not-seen neighbours/processes",
    "tmp": "links/out written-through race-of-reading public-files public-folders neighbours/files limits/disk",
    "read-only": "secrets/read-only",
    "disk": "limits/disk no-space",
    "user": "no-capabilities",
    "seccomp": "io-uring keyrings user-namespaces rare-calls tracing",
    "pids": "limits/processes limits/threads",
    "memory": "limits/memory memory-of-all",
    "hiding": "supervisor-is-not-read",
    "secrets": "secrets/environment secrets/environments",
    "archives": "links-to-outside folders/devices owners-and-modes",
    "killing trees": "time-outs/children detached held-output",
    "killing at all": "cancelled",
    "ending with us": "processes-after-a-kill",
    "closing before": "becoming-is-not-read",
    "forks": "processes-after-a-kill",
    "kinds of files": "files/pipe files/device",
}
"""By protection, cases that do not hold without it."""
_NEEDS_NO_PROTECTION = {"network/dns", "secrets/environment"}
"""What holds on a host without a network, and with any provider that keeps to the interface."""


@pytest.mark.parametrize("without", PROTECTIONS)
def test_a_missing_protection_is_noticed(without: str) -> None:
    report = run(partial(Weakened, without), *_NOTICED[without].split())
    assert {outcome.name: outcome.status for outcome in report.outcomes if outcome.status != "broken"} == {}


def test_who_promises_everything_and_does_nothing_is_found_out() -> None:
    topics = ("processes", "network", "secrets", "neighbours")
    names = [case.name for case in CASES if case.promise is not None and case.topic in topics]
    report = run(Pretender, *names, "limits/processes", "links/out")
    assert len(report.having("broken")) > 20
    assert {outcome.name for outcome in report.having("holds")} <= _NEEDS_NO_PROTECTION


def test_what_a_provider_does_not_promise_is_not_enforced_and_not_tried() -> None:
    names = [case.name for case in CASES if case.promise is not None]
    report = run(partial(make_provider, "unsafe-subprocess"), *names, "commands")
    assert report.having("broken") == ()
    assert {outcome.name for outcome in report.having("not enforced")} == {*names}
    assert {promise.status for promise in report.promises()} == {"holds", "not enforced"}
