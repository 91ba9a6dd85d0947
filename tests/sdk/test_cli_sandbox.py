"""`moonmill sandbox check`."""

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from moonmill.cli.app import cli
from moonmill.sandboxes.testing import CASES


def check(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["sandbox", "check", *arguments])


def test_it_tells_what_holds_and_by_which_means() -> None:
    result = check("stdin/verbatim", "interfaces")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["holds", "stdin/verbatim", "bytes", "arrive", "as", "they", "are"] in lines
    assert ["holds", "network", "1", "a", "network", "namespace"] in [line[:6] for line in lines]
    assert result.stdout.splitlines()[-1].endswith(": 2 hold, 0 broken, 0 not enforced, 0 not shown")
    assert "local: 2 cases in " in result.stdout


def test_a_broken_promise_is_a_failure() -> None:
    result = check("--provider", "tests.sandboxes.weakened:Pretender", "host-is-not-seen", "stdin/verbatim", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["provider"] == "pretender"
    assert found["broken"] == 1
    assert {case["name"]: case["status"] for case in found["cases"]} == {
        "stdin/verbatim": "holds",
        "processes/host-is-not-seen": "broken",
    }
    assert {promise["name"]: promise["status"] for promise in found["promises"]} == {
        None: "holds",
        "processes": "broken",
    }
    assert "broken: processes/host-is-not-seen: processes of the host: [" in result.stderr


def test_what_is_not_promised_is_no_failure() -> None:
    result = check("--provider", "unsafe-subprocess", "network", "stdin/verbatim")
    assert result.exit_code == 0, result.output
    assert ["not", "enforced", "network/tcp"] in [line.split()[:3] for line in result.stdout.splitlines()]


def test_the_cases_are_listed_without_a_provider() -> None:
    result = check("--list", "--provider", "nowhere:Nothing", "--json")
    assert [case["name"] for case in json.loads(result.stdout)] == [case.name for case in CASES]
    assert len(check("--list", "network").stdout.splitlines()) == 1 + sum(c.topic == "network" for c in CASES)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["texd"], 2, "error: there is no case, topic or promise 'texd': did you mean text?"),
        (["--provider", "lokal"], 2, "there is no provider 'lokal': did you mean local?"),
        (["--provider", "no.such.module:Provider"], 2, "no.such.module:Provider cannot be had"),
        (["--provider", "moonmill.sandboxes:SandboxSpec"], 2, "makes a SandboxSpec, which has no __aenter__"),
        (["--provider", "os:getcwd"], 2, "os:getcwd makes a str, which has no __aenter__"),
        (
            ["--provider", "tests.sandboxes.odd:exits"],
            2,
            "sandbox.provider: tests.sandboxes.odd:exits cannot be had: SystemExit",
        ),
        (["--provider", "tests.sandboxes.odd:OpenIsNone"], 2, "makes a OpenIsNone, which has no open"),
        (["--provider", "tests.sandboxes.odd:HasNoName"], 2, "which has no name"),
        (["--image", "debian"], 2, "the local provider has no images"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], code: int, words: str) -> None:
    result = check(*arguments)
    assert result.exit_code == code
    assert words in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("EnterRaises", "the provider odd raised KeyError: 'no key' ("),
        ("EnterExits", "the provider odd raised SystemExit: 0 ("),
        ("LeavingRaises", "the provider odd raised KeyError: 'no key' ("),
        ("EnforcesRaises", "the provider odd raised ZeroDivisionError ("),
        ("EnforcesASet", "the provider odd is not as it should be: enforces() returns {'network'}, but should return"),
        ("Misspelt", "enforces() names 'netwrk', which is no promise: did you mean network?"),
        ("RequireRaises", "the provider odd raised AttributeError: no such limit ("),
        ("RequireIsAsync", "require() returns <coroutine object RequireIsAsync.require at"),
        ("OpenRaises", "the provider odd raised ZeroDivisionError: odd ("),
        ("OpenExits", "the provider odd raised SystemExit: 0 ("),
        ("OpenIsAFunction", "open() returns <coroutine object OpenIsAFunction.open at"),
    ],
)
def test_what_is_wrong_with_a_provider_is_told_as_its_own_fault(provider: str, words: str) -> None:
    result = check("--provider", f"tests.sandboxes.odd:{provider}", "stdin/verbatim")
    assert result.exit_code == 1
    [said] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert words in said
    assert "internal error" not in result.stderr
    assert "never awaited" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_it_wherever_it_is(number: signal.Signals) -> None:
    """Raised in the midst of whatever runs, it could leave threads behind that are waited for without end."""
    command = [sys.executable, "-m", "moonmill", "sandbox", "check", "--provider", "tests.sandboxes.odd:Busy"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "at work\n":
            assert process.poll() is None
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (1, "ended by CancelledError\nstopped\n")


def test_it_needs_no_pytest() -> None:
    code = "import sys, moonmill.sandboxes.testing; print([name for name in sys.modules if 'pytest' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
