"""What a sandbox cannot be asked for is told in words, by the value that was wrong, and harms it in no way."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moonmill.sandboxes import ExecError, Sandbox, SandboxFileError, SandboxSpec
from moonmill.sandboxes.calls import Refusal, file_error
from moonmill.sandboxes.unsafe import UnsafeSubprocessProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with UnsafeSubprocessProvider() as provider, provider.open(SandboxSpec()) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("argv", "given", "why"),
    [
        ("ls", {}, "a command is a list that begins with a program, not 'ls'"),
        ({"ls"}, {}, "not {'ls'}"),
        (None, {}, "not None"),
        ([], {}, r"not \[\]"),
        (["ls", 3], {}, "argument 1 of 'ls' is 3, but should be text"),
        (["ls", "a\0"], {}, "argument 1 of 'ls' has a NUL in it"),
        (["ls", "\ud800"], {}, r"argument 1 of 'ls' is '\\ud800', which is no text in UTF-8"),
        (["cat"], {"input": 5}, "input is 5, but should be bytes or text"),
        (["cat"], {"input": "x\ud800"}, r"input has '\\ud800' at 1, which UTF-8 does not know: give bytes"),
        (["pwd"], {"cwd": Path("/")}, r"cwd is PosixPath\('/'\), but should be text"),
        (["pwd"], {"cwd": "\ud800"}, r"cwd is '\\ud800'"),
        (["pwd"], {"cwd": "\0"}, r"cwd is '\\x00'"),
        (["env"], {"env": {"A": 1}}, "env is {'A': 1}, but should be texts in UTF-8 by names"),
        (["env"], {"env": {"A=B": "1"}}, "env is "),
        (["env"], {"env": {"A": "\ud800"}}, "env is "),
        (["env"], {"env": ["A"]}, r"env is \['A'\]"),
        (["id"], {"user": 0}, "user is 0, but should be text"),
        (["id"], {"user": "\ud800"}, r"user is '\\ud800'"),
        (["id"], {"timeout": 0}, "timeout is 0, but should be seconds, more than 0"),
        (["id"], {"timeout": float("nan")}, "timeout is nan"),
        (["id"], {"timeout": "5"}, "timeout is '5'"),
        (["id"], {"timeout": 10**400}, "timeout is a number that is too large"),
        (["id"], {"output_limit": 1e6}, r"output_limit is 1000000\.0, but should be a number of bytes"),
    ],
)
async def test_a_command_that_cannot_be(sandbox: Sandbox, argv: Any, given: dict[str, Any], why: str) -> None:
    with pytest.raises(ExecError, match=why):
        await sandbox.exec(argv, **given)
    assert (await sandbox.exec(("echo", "\udcff"), input=memoryview(b"x"), timeout=9)).stdout_bytes == b"\xff\n"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "arguments", "given", "why"),
    [
        ("read_file", (Path("x"),), {}, r"PosixPath\('x'\): a path in a sandbox is text, not PosixPath"),
        ("read_file", (5,), {}, "5: a path in a sandbox is text, not int"),
        ("read_file", ("",), {}, "a path may not be empty"),
        ("read_file", ("\ud800",), {}, r"'\\ud800': a path is text in UTF-8"),
        ("read_file", ("x",), {"limit": 1e9}, r"x: limit is 1000000000\.0, but should be a number of bytes"),
        ("read_file", ("x",), {"limit": -1}, "x: limit is -1"),
        ("download", (".", "nowhere"), {"limit": None}, "limit is None"),
        ("list_files", ("\ud800",), {}, r"'\\ud800': a path is text in UTF-8"),
        ("upload", (Path(__file__).parent, Path("x")), {}, "a path in a sandbox is text"),
        ("write_file", ("x", 3), {}, "x: its content is 3, but should be bytes or text"),
        ("write_file", ("x", None), {}, "x: its content is None"),
        ("write_file", ("x", "ab\ud800"), {}, r"x: its content has '\\ud800' at 2, which UTF-8 does not know"),
        ("write_file", ("x", "y"), {"mode": "0644"}, "x: mode is '0644', but should be permission bits"),
        ("write_file", ("x", "y"), {"mode": -1}, "x: mode is -1"),
        ("write_files", ({Path("x"): "y"},), {}, r"PosixPath\('x'\): a path in a sandbox is text"),
        ("write_files", ({"x": 3},), {}, "x: its content is 3"),
        ("write_files", ({"x": "\ud800"},), {}, "x: its content has "),
        ("write_files", ({"\ud800": "x"},), {}, r"'\\ud800': a path is text in UTF-8"),
        ("write_files", (None,), {}, "files are contents by their paths, not None"),
    ],
)
async def test_a_file_that_cannot_be(
    sandbox: Sandbox, method: str, arguments: tuple[Any, ...], given: dict[str, Any], why: str
) -> None:
    with pytest.raises(SandboxFileError, match=why) as raised:
        await getattr(sandbox, method)(*arguments, **given)
    assert raised.value.problem == "invalid"
    assert str(raised.value).encode(), "it can be shown"
    await sandbox.write_file("odd \udcff", bytearray(b"ok"))  # type: ignore[arg-type]
    assert await sandbox.read_file("odd \udcff") == b"ok"


@pytest.mark.parametrize("stage", ["sandbox", "program"])
def test_where_no_process_can_be_made_it_is_the_limit_that_is_named(stage: str) -> None:
    refusal = Refusal(errno.EAGAIN, stage, "Resource temporarily unavailable")
    assert refusal.say("ls", "/", None).endswith("since what runs has used up limits.pids")
    error = file_error("x", refusal)
    assert (error.problem, str(error)) == (
        "no_processes",
        "x: no further process can be started there, since what runs has used up limits.pids",
    )
