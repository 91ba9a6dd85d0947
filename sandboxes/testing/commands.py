"""Commands run as they were asked for, and tell how they ended."""

import time

import anyio

from moonmill.sandboxes.errors import ExecError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import Topic
from moonmill.sandboxes.testing.expect import (
    at_once,
    equal,
    gone,
    new_marker,
    probe,
    refused,
    running,
    shell,
    that,
    until,
)
from moonmill.sandboxes.testing.lab import Lab

topic = Topic("commands")
_ODD_ARGUMENTS = [
    "two words",
    "",
    "'\"",
    "$HOME",
    "`id`",
    "$(id)",
    "*",
    "-n",
    "new\nline",
    "größe-猫",
    "back\\slash",
    ";",
]
_AT_ONCE = 20


@topic.inside("stdout and stderr are kept apart")
async def output(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["sh", "-c", "echo out; echo err >&2; printf more"])
    equal("stdout", result.stdout, "out\nmore")
    equal("stderr", result.stderr, "err\n")
    that(not result.truncated, "output of a few bytes is flagged as truncated")
    that(not result.oom_killed, "it is flagged as killed for its memory")


@topic.inside("arguments arrive as they are; there is no shell")
async def arguments(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["python3", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *_ODD_ARGUMENTS])
    code = "answer = json.loads(given['text'])"
    equal("the arguments", await probe(sandbox, code, text=result.stdout), _ODD_ARGUMENTS)


@topic.inside("arguments of 1 MiB in total arrive")
async def many_arguments(sandbox: Sandbox) -> None:
    big = ["x" * 100_000] * 10 + ["y" * 48_576]
    result = await sandbox.exec(["python3", "-ISc", "import sys; print(sum(map(len, sys.argv[1:])))", *big])
    equal("the bytes that arrived", result.stdout, "1048576\n")


@topic.inside("return codes are those of the program")
async def return_codes(sandbox: Sandbox) -> None:
    for code in (0, 1, 42, 126, 127, 255):
        equal("the return code", (await sandbox.exec(["sh", "-c", f"exit {code}"])).returncode, code)


@topic.inside("a program that signal n has ended has the return code 128 + n")
async def signals(sandbox: Sandbox) -> None:
    for name, number in (("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2)):
        result = await sandbox.exec(["sh", "-c", f"kill -{name} $$; sleep 5"], timeout=30)
        equal(f"the return code after SIG{name}", result.returncode, 128 + number)


@topic.inside("a character that is split between two chunks of output is still one")
async def split_characters(sandbox: Sandbox) -> None:
    code = "import sys; sys.stdout.buffer.write(b'x' + '猫é🐈'.encode() * 50_000)"
    result = await sandbox.exec(["python3", "-ISc", code])
    equal("the text", result.stdout, "x" + "猫é🐈" * 50_000)


@topic.inside("output that is no UTF-8 comes as it is in bytes, and with replacements as text")
async def output_that_is_no_text(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "a\\377\\000b"])
    equal("the bytes", result.stdout_bytes, b"a\xff\0b")
    equal("the text", result.stdout, "a�\0b")


@topic.inside("output over the limit is cut and flagged, and the program goes on to its end")
async def output_limit(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero; echo end >&2; exit 7"], output_limit=1000)
    equal("stdout", result.stdout_bytes, bytes(1000))
    that(result.truncated, "cut output is not flagged")
    equal("stderr", result.stderr, "end\n")
    equal("the return code", result.returncode, 7)
    exact = await sandbox.exec(["printf", "12345"], output_limit=5)
    equal("output of just the limit", (exact.stdout, exact.truncated), ("12345", False))
    over = await sandbox.exec(["printf", "123456"], output_limit=5)
    equal("output of one byte more", (over.stdout, over.truncated), ("12345", True))


@topic.inside("a command runs in the workdir, or where it is told to")
async def cwd(sandbox: Sandbox) -> None:
    await sandbox.write_file("some/where/file", b"")
    workdir = (await sandbox.exec(["pwd", "-P"])).stdout
    equal("the folder of relative paths", await shell(sandbox, "ls some/where"), "file\n")
    equal("a relative one", (await sandbox.exec(["ls"], cwd="some/where")).stdout, "file\n")
    equal("an absolute one", (await sandbox.exec(["pwd", "-P"], cwd="/")).stdout, "/\n")
    equal("the workdir afterwards", (await sandbox.exec(["pwd", "-P"])).stdout, workdir)


@topic.around("environment variables are those of the spec and of the command")
async def environment(lab: Lab) -> None:
    async with lab.open(env={"OF_SPEC": "größe", "BOTH": "spec"}) as sandbox:
        text = 'echo "$OF_SPEC,$BOTH,$OF_COMMAND"'
        told = await sandbox.exec(["sh", "-c", text], env={"BOTH": "command", "OF_COMMAND": "a b"})
        equal("the variables", told.stdout, "größe,command,a b\n")
        equal("those of the next command", await shell(sandbox, text), "größe,spec,\n")
        that(bool(await shell(sandbox, 'printf %s "$PATH"')), "there is no PATH")


@topic.inside("a program, folder or user that is not there is a typed error")
async def unknown(sandbox: Sandbox) -> None:
    await sandbox.write_file("no-program", b"\x00\x01\x02")
    await sandbox.write_file("no-script", b"\x00\x01\x02", mode=0o755)
    for program in ("no-such-program", "/no/such/program", "./no-program", "./no-script", "/", "./no-program/x"):
        with refused(ExecError, f"running {program}"):
            await sandbox.exec([program])
    for folder in ("/no/such/folder", "no-program", "a\0b"):
        with refused(ExecError, f"running in {folder!r}"):
            await sandbox.exec(["true"], cwd=folder)
    with refused(ExecError, "running as a user who is not there"):
        await sandbox.exec(["true"], user="no-such-user")


@topic.inside("arguments that no program can be given are typed errors")
async def impossible_arguments(sandbox: Sandbox) -> None:
    for argv in ([], [""], ["true", "a\0b"], ["a\0b"], ["true", "x" * 3_000_000]):
        with refused(ExecError, f"running {[argument[:5] for argument in argv]}"):
            await sandbox.exec(argv)
    for env in ({"A": "a\0b"}, {"A\0": ""}, {"A=B": ""}):
        with refused(ExecError, f"running with the environment {env}"):
            await sandbox.exec(["true"], env=env)


@topic.inside("many commands run at once, and each gets its own answer")
async def at_the_same_time(sandbox: Sandbox) -> None:
    answers: dict[int, str] = {}

    async def ask(number: int) -> None:
        answers[number] = (await sandbox.exec(["sh", "-c", f"sleep 0.5; echo {number}"])).stdout

    begin = time.monotonic()
    async with anyio.create_task_group() as group:
        for number in range(_AT_ONCE):
            group.start_soon(ask, number)
    equal("the answers", answers, {number: f"{number}\n" for number in range(_AT_ONCE)})
    took = time.monotonic() - begin
    that(took < 0.5 * _AT_ONCE / 2, f"{_AT_ONCE} commands of 0.5 s took {took:.1f} s together")


@topic.inside("the duration is that of the command")
async def duration(sandbox: Sandbox) -> None:
    seconds = (await sandbox.exec(["sleep", "0.2"])).duration
    that(0.15 < seconds < 0.2 + 5, f"`sleep 0.2` is said to have taken {seconds:.3f} s")


@topic.inside("what is left in the background does not delay the end of its command, and goes on")
async def background(sandbox: Sandbox) -> None:
    marker = new_marker()
    with at_once("a command whose child holds on to its stdout"):
        result = await sandbox.exec(["sh", "-c", f"sleep {marker} & echo done"], timeout=30)
    equal("stdout", result.stdout, "done\n")
    await anyio.sleep(0.1)
    that(len(await running(sandbox, marker, kill=True)) == 1, "what was left in the background is gone")


@topic.inside("a command that is cancelled is gone")
async def cancelled(sandbox: Sandbox) -> None:
    marker = new_marker()
    with at_once("cancelling a command"), anyio.move_on_after(0.3):
        await sandbox.exec(["sh", "-c", f"setsid sleep {marker} & sleep {marker}"], timeout=30)
    await gone(sandbox, marker, "a command that was cancelled")


@topic.inside("commands begin without open files, blocked or ignored signals, or a terminal")
async def a_clean_start(sandbox: Sandbox) -> None:
    code = """
fds = [int(name) for name in os.listdir("/proc/self/fd")]
there = {}
for fd in fds:
    try:
        there[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
try:
    os.close(os.open("/dev/tty", os.O_RDWR))
    terminal = True
except OSError:
    terminal = False
answer = [sorted(set(there) - {0, 1, 2}), int(status["SigBlk"], 16), int(status["SigIgn"], 16), terminal]
"""
    opened, blocked, ignored, terminal = await probe(sandbox, code)
    equal("file descriptors beside stdin, stdout and stderr", opened, [])
    equal("the signals that are blocked", blocked, 0)
    python_ignores = 1 << 12 | 1 << 24  # SIGPIPE, SIGXFSZ: by itself
    # Two that no program can ask for: glibc's own, which it ignores in whatever is started by posix_spawn, as by make.
    threads_own = 1 << 31 | 1 << 32
    equal("the signals that are ignored", ignored & ~(python_ignores | threads_own), 0)
    that(not terminal, "commands have a controlling terminal")
    piped = await sandbox.exec(["sh", "-c", "yes | head -n 1"])
    equal("a pipe whose reader has left", (piped.stdout, piped.stderr), ("y\n", ""))


@topic.inside("orphans that have ended are not left as zombies")
async def zombies(sandbox: Sandbox) -> None:
    await shell(sandbox, "for i in 1 2 3 4 5 6 7 8; do (sleep 0.1 &) ; done; sleep 0.2")
    code = """
answer = 0
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
            answer += fields[0] == "Z" and os.stat(f"/proc/{name}").st_uid == os.getuid()
        except OSError:
            pass
"""

    async def none_is_left() -> bool:
        return not await probe(sandbox, code)

    await until(none_is_left, "there are zombies left")
