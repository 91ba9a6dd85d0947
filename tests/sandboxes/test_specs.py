"""A spec that no sandbox could be made by is refused, whoever the provider is, before anything is started."""

from typing import Any

import pytest

from moonmill.sandboxes import SandboxLimits, SandboxSpec, SandboxSpecError
from moonmill.sandboxes.specs import check_spec

INFINITE = float("inf")


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"cpus": INFINITE}, r"limits\.cpus: expected a number from 0\.01 to 65536, or null, got Infinity"),
        ({"cpus": float("nan")}, r"limits\.cpus: .* got NaN"),
        ({"cpus": 1e300}, r"limits\.cpus: .* got 1e\+300"),
        ({"cpus": 0.001}, r"limits\.cpus: .* got 0\.001"),
        ({"memory_mib": 1}, r"limits\.memory_mib: expected a whole number from 32 "),
        ({"pids": 0, "disk_mib": "9"}, r"limits\.pids: .* got 0; limits\.disk_mib: .* got '9'"),
        ({"pids": object()}, r"limits\.pids: "),
        ({"lifetime": True}, r"limits\.lifetime: expected a number above 0, got true"),
    ],
)
def test_a_limit_that_cannot_be_is_named(limits: dict[str, Any], why: str) -> None:
    with pytest.raises(SandboxSpecError, match=why):
        check_spec(SandboxSpec(limits=SandboxLimits(**limits)))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"limits": {"pids": 3}}, "limits is {'pids': 3}, but should be a SandboxLimits"),
        ({"workdir": "here"}, "workdir is 'here', but should be an absolute path below /"),
        ({"workdir": "/./."}, "workdir is "),
        ({"workdir": "/\ud800"}, "workdir is "),
        ({"workdir": "/" + "x" * 256}, "workdir is .*names of 255 bytes at most"),
        ({"workdir": "/x" * 3000}, "workdir is "),
        ({"image": "\ud800"}, "image is "),
        ({"image": ""}, "image is ''"),
        ({"user": 1000}, "user is 1000, but should be a name or a uid, as text"),
        ({"env": {"A": 1}}, "env is {'A': 1}, but should be texts"),
        ({"env": {"A=": "x"}}, "env is "),
        ({"env": {"A": "\udc80"}}, "env is "),
        ({"files": {"a": 1}}, "files is {'a': 1}, but should be contents"),
        ({"files": {"a": "\ud800"}}, "files is .* text in UTF-8"),
        ({"files": {"\ud800": "a"}}, "files is "),
        ({"files": {"a\0": "a"}}, "files is "),
        ({"network": ["none"]}, r"network is \['none'\]"),
    ],
)
def test_a_field_that_cannot_be_is_named(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(SandboxSpecError, match=why):
        check_spec(SandboxSpec(**fields))


@pytest.mark.parametrize(
    "spec",
    [
        SandboxSpec(),
        SandboxSpec(limits=SandboxLimits(cpus=0.01)),
        SandboxSpec(limits=SandboxLimits(cpus=2, lifetime=INFINITE)),
        SandboxSpec(workdir="/w ö/" + "x" * 255, env={"A": "ü=\n"}, user="0"),
        SandboxSpec(files={"any \udcff byte": b"\xff", "/tmp/x": "ü"}),
    ],
)
def test_anything_else_may_be(spec: SandboxSpec) -> None:
    check_spec(spec)
