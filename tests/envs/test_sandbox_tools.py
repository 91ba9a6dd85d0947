"""The tools that are mixed into an environment with a sandbox: what the model is told."""

import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from moonmill import Message
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import SandboxService
from moonmill.envs.command_output import OUTPUT_CHARS
from moonmill.envs.sandbox_tools import FILE_BYTES, LINE_CHARS, BashTool, FileTools, PythonTool
from moonmill.envs.tools import collect_tools
from moonmill.sandboxes import SandboxSpec, SandboxUnavailableError
from tests.envs.parts import TASK, OneTask, call, says


class Coder(BashTool, PythonTool, FileTools):
    """All of the tools, around a sandbox that a test gives."""

    def __init__(self, sandbox: Any) -> None:
        self.sandbox = sandbox


@pytest.fixture
def coder(box: Any) -> Coder:
    return Coder(box)


# What the model reads


def test_each_tool_has_a_description_and_says_what_each_argument_is() -> None:
    tools = collect_tools(Coder)
    assert set(tools) == {"bash", "python", "read_file", "write_file", "edit_file"}
    for tool in tools.values():
        assert len(tool.spec.description) > 20
        for name, schema in tool.spec.parameters["properties"].items():
            assert schema.get("description"), f"{tool.spec.name}: {name}"


def test_the_schema_of_bash() -> None:
    assert collect_tools(Coder)["bash"].spec.parameters == {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "what to run"},
            "timeout": {
                "type": "integer",
                "minimum": 1,
                "maximum": 600,
                "default": 60,
                "description": "seconds after which it is killed",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    }


# bash


def test_output_is_told_as_it_is(coder: Coder) -> None:
    assert coder.bash("printf 'a\\n b'") == "a\n b"
    assert coder.bash("echo a; echo") == "a\n"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("true", "[no output]"),
        ("false", "[exit code 1]"),
        ("echo out; echo err >&2", "out\n[stderr]\nerr"),
        ("echo err >&2; exit 3", "[stderr]\nerr\n[exit code 3]"),
        ("echo x; kill -TERM $$", "x\n[exit code 143, which is SIGTERM]"),
        ("exit 255", "[exit code 255]"),
    ],
)
def test_how_a_command_ended_is_told(coder: Coder, command: str, answer: str) -> None:
    assert coder.bash(command) == answer


def test_each_call_is_a_new_shell_and_files_stay(coder: Coder) -> None:
    assert coder.bash("mkdir sub; cd sub; export A=1; touch here") == "[no output]"
    assert coder.bash("echo $A; ls") == "\nsub"
    assert coder.bash("ls sub") == "here"


def test_what_a_command_has_written_before_its_time_out_is_told(coder: Coder) -> None:
    begin = time.monotonic()
    answer = coder.bash("echo before; sleep 50", timeout=1)
    assert answer == "before\n[killed: it took longer than 1 second; above is what it had written until then]"
    assert time.monotonic() - begin < 10
    assert coder.bash("echo still here") == "still here"


def test_of_long_output_the_middle_is_left_out(coder: Coder) -> None:
    answer = coder.bash("seq 100000")
    assert len(answer) < OUTPUT_CHARS + 100
    assert answer.startswith("1\n2\n")
    assert "characters left out]" in answer
    assert answer.endswith("\n99999\n100000")


def test_output_that_is_not_kept_is_told(coder: Coder) -> None:
    answer = coder.bash("head -c 5000000 /dev/zero | tr '\\0' x; exit 2")
    assert "[it wrote more than is kept; the rest is lost]\n[exit code 2]" in answer
    assert len(answer) < OUTPUT_CHARS + 200


def test_running_out_of_memory_is_told(coder: Coder) -> None:
    answer = coder.python("x = b'x' * (1 << 30)")
    assert "MemoryError" in answer or answer == "[exit code 137, which is SIGKILL: out of memory]"


def test_a_command_that_cannot_be_given_is_told(coder: Coder) -> None:
    assert coder.bash("echo \0").startswith("error: ")


# python


def test_a_program_can_use_the_modules_of_the_working_directory(coder: Coder) -> None:
    coder.write_file("helper.py", "def twice(x):\n    return 2 * x\n")
    assert coder.python("from helper import twice\nprint(twice(21))") == "42"


def test_an_exception_is_told_with_its_line(coder: Coder) -> None:
    answer = coder.python("print('a')\n1 / 0")
    assert answer.startswith("a\n[stderr]\nTraceback")
    assert "line 2" in answer
    assert answer.endswith("ZeroDivisionError: division by zero\n[exit code 1]")


def test_a_program_has_the_seconds_that_its_environment_gives_it(coder: Coder) -> None:
    coder.python_seconds = 1
    assert coder.python("print('a', flush=True)\nimport time; time.sleep(50)").startswith("a\n[killed: it took longer")


def test_a_large_program_is_run(coder: Coder) -> None:
    assert coder.python("x = '''" + "y" * 500_000 + "'''\nprint(len(x))") == "500000"


# read_file


def test_lines_are_shown_with_their_numbers(coder: Coder) -> None:
    coder.write_file("f", "one\n\nthree")
    assert coder.read_file("f") == "     1\tone\n     2\t\n     3\tthree"


def test_a_part_of_a_file_is_shown_with_where_it_is(coder: Coder) -> None:
    coder.write_file("f", "".join(f"line {i}\n" for i in range(1, 1001)))
    assert coder.read_file("f", start=500, lines=2) == (
        "   500\tline 500\n   501\tline 501\n[lines 500 to 501 of 1000; go on with start=502]"
    )
    assert coder.read_file("f").endswith("   200\tline 200\n[lines 1 to 200 of 1000; go on with start=201]")
    assert coder.read_file("f", start=1000) == "  1000\tline 1000\n[lines 1000 to 1000 of 1000]"
    assert coder.read_file("f", start=1001) == "error: f: has 1000 lines, so none at 1001"


def test_an_empty_file_is_told(coder: Coder) -> None:
    coder.write_file("f", "")
    assert coder.read_file("f") == "[f is empty]"


def test_long_lines_and_much_text_are_shortened(coder: Coder) -> None:
    coder.write_file("f", ("x" * 3000 + "\n") * 100)
    answer = coder.read_file("f")
    assert f"{'x' * LINE_CHARS}[2000 characters left out]\n" in answer
    assert len(answer) < 30_000
    assert answer.endswith("of 100; go on with start=21]")


def test_what_cannot_be_read_is_told(coder: Coder) -> None:
    coder.bash("printf 'a\\377b' > binary; mkdir folder; mkfifo fifo; touch secret; chmod 0 secret")
    coder.bash(f"truncate -s {FILE_BYTES + 1} large")
    assert coder.read_file("missing").startswith("error: missing: ")
    assert coder.read_file("folder").startswith("error: folder: ")
    assert coder.read_file("fifo").startswith("error: fifo: ")
    assert coder.read_file("secret").startswith("error: secret: ")
    assert coder.read_file("binary") == "error: binary: is no text in UTF-8 (see the byte at position 1)"
    assert f"limit of {FILE_BYTES} bytes" in coder.read_file("large")


# write_file


def test_a_file_is_written_with_its_folders(coder: Coder) -> None:
    assert coder.write_file("a/b/c.txt", "ä\nx\n") == "wrote a/b/c.txt: 2 lines"
    assert coder.bash("cat a/b/c.txt") == "ä\nx"
    assert coder.write_file("a/b/c.txt", "y") == "wrote a/b/c.txt: 1 line"
    assert coder.bash("cat a/b/c.txt") == "y"


def test_what_cannot_be_written_is_told(coder: Coder) -> None:
    assert coder.write_file("/usr/x", "y").startswith("error: /usr/x: ")
    assert coder.write_file(".", "y").startswith("error: .: ")


# edit_file


def test_the_one_occurrence_is_replaced_and_nothing_else(coder: Coder) -> None:
    coder.bash("printf 'one\\ntwo \\377\\r\\nthree' > f; chmod 751 f")
    assert coder.edit_file("f", "two ", "2") == "edited f at line 2"
    assert coder.sandbox.read_file("f") == b"one\n2\xff\r\nthree"
    assert coder.bash("stat -c %a f") == "751"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("two", "x", "old occurs more than once, at the lines 2, 4: give more of the text around the one you mean"),
        ("aa", "x", "old occurs more than once, at the lines 5, 5: give more of the text around the one you mean"),
        ("four", "x", "old does not occur in it"),
        (
            "    three\nx",
            "x",
            "old does not occur in it; look at line 3: compare white space and the lines that follow",
        ),
        ("one", "one", "old and new are the same: nothing would change"),
        ("", "x", "old is empty: it must be a piece of the file (write_file makes a new one)"),
    ],
)
def test_what_cannot_be_replaced_is_told_and_changes_nothing(coder: Coder, old: str, new: str, problem: str) -> None:
    text = "one\ntwo\n\tthree\ntwo\naaa\n"
    coder.write_file("f", text)
    assert coder.edit_file("f", old, new) == f"error: f: {problem}"
    assert coder.sandbox.read_file("f").decode() == text


def test_other_ends_of_lines_are_told(coder: Coder) -> None:
    coder.sandbox.write_file("f", "a\r\nb\r\n")
    assert coder.edit_file("f", "a\nb", "c") == (
        "error: f: old does not occur in it: its lines end in \\r\\n, those of old in \\n"
    )


def test_many_occurrences_are_not_all_told(coder: Coder) -> None:
    coder.write_file("f", "x\n" * 50)
    assert "at the lines 1, 2, 3, 4, 5 and more:" in coder.edit_file("f", "x", "y")


def test_a_file_that_is_not_there_cannot_be_edited(coder: Coder) -> None:
    assert coder.edit_file("missing", "a", "b").startswith("error: missing: ")


# The sandbox


def test_a_sandbox_that_is_lost_is_no_answer() -> None:
    class Lost:
        def __getattr__(self, method: str) -> Any:
            def lose(*args: Any, **kwargs: Any) -> None:
                raise SandboxUnavailableError("it is gone")

            return lose

    coder = Coder(Lost())
    for use in (
        lambda: coder.bash("true"),
        lambda: coder.python("1"),
        lambda: coder.read_file("f"),
        lambda: coder.write_file("f", ""),
        lambda: coder.edit_file("f", "a", "b"),
    ):
        with pytest.raises(SandboxUnavailableError):
            use()


# In an environment


class Repair(BashTool, FileTools, OneTask):
    """Its tools are all mixed in."""

    sandbox = SandboxSpec(files={"add.py": "def add(a, b):\n    return a - b\n"})


def test_mixed_in_they_are_tools_of_an_episode_and_a_missing_file_is_no_fault() -> None:
    calls = (
        call("edit_file", path="sub.py", old="a", new="b"),
        call("edit_file", path="add.py", old="a - b", new="a + b"),
        call("bash", command="python3 -c 'import add; print(add.add(3, 4))'", timeout=9),
        call("bash", command="sleep 9", timeout=1),
        call("bash", command="true", timeout=0),
    )

    def act(messages: Sequence[Message]) -> Message:
        taken = sum(message.role == "assistant" for message in messages)
        return says(calls[taken]) if taken < len(calls) else Message("assistant", "done")

    with SandboxService():
        runner = EpisodeRunner("repair-v0", Repair, ScriptedAgent(act))
        rollout = anyio.run(lambda: runner.run(TASK, id="r", seed=0))
    answers = [message.content for message in rollout.messages if message.role == "tool"]
    assert answers[0].startswith("error: sub.py: ")
    assert answers[1:3] == ["edited add.py at line 2", "7"]
    assert answers[3].startswith("[killed: it took longer than 1 second;")
    assert "wrong arguments for bash" in answers[4]
    assert [(fault.tool, fault.kind) for fault in rollout.tool_faults] == [("bash", "invalid_arguments")]
