"""Author's code prints as it likes: results stay readable, and so does the live display."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from moonmill.cli.app import cli
from moonmill.cli.results import Command, results

NOISY = """
import atexit, os, threading, time

def noise(who):
    print("noise of", who)
    os.system(f"echo noise of a program of {who}")
    os.write(1, b"noise below python\\n")

noise("the module")
atexit.register(print, "noise at the end")

from moonmill import MultiTurnEnv, Task, reward, tool

def never_silent():
    while True:
        print("noise of a thread")
        time.sleep(0.001)

class Noisy(MultiTurnEnv):
    def __init__(self):
        noise("the constructor")

    def tasks(self, split):
        noise("the tasks")
        yield Task("say something")

    @tool
    def speak(self) -> str:
        "Speak."
        noise("the tool")
        threading.Thread(target=never_silent, daemon=True).start()
        return "spoken"

    @reward
    def loud(self, rollout):
        noise("the reward")
        return 1.0
"""


@pytest.fixture
def noisy(tmp_path: Path) -> str:
    (tmp_path / "noisy.py").write_text(NOISY)
    return f"{tmp_path / 'noisy.py'}:Noisy"


def moonmill(*arguments: str, input: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "moonmill", *arguments]
    return subprocess.run(command, input=input, capture_output=True, text=True, timeout=60, check=False)


def test_what_an_environment_prints_while_it_is_shown_goes_to_stderr(noisy: str) -> None:
    done = moonmill("envs", "show", noisy, "--json")
    assert json.loads(done.stdout)["tools"][0]["name"] == "speak"
    for who in ("the module", "a program of the constructor", "the tasks"):
        assert f"noise of {who}" in done.stderr
    assert "noise below python" in done.stderr


def test_what_an_environment_prints_in_an_episode_goes_to_stderr(noisy: str) -> None:
    done = moonmill("envs", "play", noisy, "--json", input="/speak\nfinished\n")
    assert json.loads(done.stdout)["reward"] == 1.0
    for who in ("the tool", "a program of the tool", "a program of the reward", "a thread"):
        assert f"noise of {who}" in done.stderr
    assert "noise at the end" in done.stderr


def test_stdout_is_given_back_also_after_an_error(noisy: str) -> None:
    code = (
        "import os\nfrom moonmill.cli.app import cli\n"
        f"for args in (['envs', 'show', {noisy!r}, '--json'], ['envs', 'show', 'nothing-v0']):\n"
        "    cli.main(args, standalone_mode=False)\n"
        "print('ours', flush=True)\nos.system('echo ours too')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    shown, _, rest = done.stdout.partition("\n}\n")
    assert json.loads(shown + "}")["tools"]
    assert rest.splitlines() == ["ours", "ours too", "noise at the end"]


@pytest.mark.parametrize("closing", ["<&0 >&-", "<&0 2>&-"])
def test_a_closed_stream_is_no_error(closing: str, noisy: str) -> None:
    script = f"{sys.executable} -m moonmill envs show {noisy} --json {closing}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


def test_playing_needs_an_open_stdin() -> None:
    script = f"{sys.executable} -m moonmill envs play calculator-v0 <&-"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    said = "error: your lines cannot be read: stdin is closed; leave it open, or lead a file into it\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["envs show calculator-v0 --json", "envs show --help", "envs list"])
def test_a_reader_that_leaves_is_no_error(arguments: str, unbuffered: str) -> None:
    script = f"{sys.executable} -m moonmill {arguments} | true; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "--version", "envs show calculator-v0 --json", "envs list"])
def test_a_full_disk_is_told_in_one_line(arguments: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "moonmill", *arguments.split()],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "error: cannot write to stdout: No space left on device\n")


ACCENTED = """
from moonmill import MultiTurnEnv, Task

class Accented(MultiTurnEnv):
    def tasks(self, split):
        yield Task("¿Qué?")
"""


@pytest.mark.parametrize("encoding", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii:strict"}])
def test_a_terminal_that_knows_only_ascii_is_no_error_and_json_is_utf_8(
    encoding: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "accented.py").write_text(ACCENTED)
    command = [sys.executable, "-m", "moonmill", "envs", "play", f"{tmp_path / 'accented.py'}:Accented"]
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **encoding}

    def played(*options: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [*command, *options], input="hé".encode(), env=environment, capture_output=True, timeout=60, check=True
        )

    assert rb"user: \xbfQu\xe9?" in played().stdout
    as_json = played("--json")
    assert rb"user: \xbfQu\xe9?" in as_json.stderr
    assert [m["content"] for m in json.loads(as_json.stdout.decode("utf-8"))["messages"]] == ["¿Qué?", "hé"]


@pytest.mark.parametrize(
    ("name", "shown"), [("accenté.py".encode(), "accenté.py"), (b"accent\xe9.py", "accent\ufffd.py")]
)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_file_name_is_told_in_json_as_far_as_it_can_be_read(
    name: bytes, shown: str, locale: str, tmp_path: Path
) -> None:
    file = os.fsencode(tmp_path) + b"/" + name
    Path(os.fsdecode(file)).write_text(ACCENTED)
    done = subprocess.run(
        [sys.executable, "-m", "moonmill", "envs", "show", "--json", file + b":Accented"],
        env={**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": locale},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["id"] == f"{tmp_path}/{shown}:Accented"


def test_json_goes_also_to_a_stream_of_text() -> None:
    with redirect_stdout(io.StringIO()) as out:
        cli.main(["envs", "show", "calculator-v0", "--json"], standalone_mode=False)
    assert json.loads(out.getvalue())["id"] == "calculator-v0"


def test_every_command_that_may_run_an_authors_code_guards_its_results() -> None:
    import click

    def leaves(group: click.Group) -> dict[str, click.Command]:
        found: dict[str, click.Command] = {}
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command
            found |= leaves(command) if isinstance(command, click.Group) else {name: command}
        return found

    unguarded = {name for name, command in leaves(cli).items() if not isinstance(command, Command)}
    assert unguarded == {"serve"}  # its engine is a process of its own, which prints one line to a pipe


def test_outside_a_command_results_go_to_stdout() -> None:
    assert results() is sys.stdout


LIVE = """
import os, sys, time
from moonmill.cli.progress import reporting
from moonmill.reporting import StepLine

with reporting() as reporter:
    reporter.phase("training")
    reporter.step(StepLine(1, 9, 1, reward=0.5))
    print("said by a tool")
    print("complained by a tool", file=sys.stderr)
    os.system("echo said by a program; echo complained by a program >&2")
    os.write(1, b"\\x1b[2A10%\\rhalf\\rwhole\\n")
    time.sleep(0.5)
    os.system("(sleep 3; echo left behind) &")
    os.write(2, b"without an end")
print("afterwards")
"""


def test_what_is_printed_beside_a_live_display_stands_above_it_in_whole_lines() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", LIVE])
    shown = b""
    while b"afterwards" not in shown and b"Traceback" not in shown:
        shown += os.read(terminal, 1 << 16)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    os.close(terminal)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n")]
    for who in ("a tool", "a program"):
        assert f"said by {who}" in lines
        assert f"complained by {who}" in lines
    assert "whole" in lines
    assert "without an end" in lines
    assert "training" in lines[lines.index("whole") + 1]
