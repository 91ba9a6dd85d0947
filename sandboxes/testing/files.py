"""Files go in and come out as they are."""

import os

from moonmill.sandboxes.errors import OutputLimitExceededError, SandboxFileError, SandboxSpecError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import NotShownError, Topic
from moonmill.sandboxes.testing.expect import at_once, equal, probe, refused, shell, that
from moonmill.sandboxes.testing.lab import Lab
from moonmill.sandboxes.types import MIB

topic = Topic("files")
_EVERY_BYTE = bytes(range(256)) * 3 + b"\r\n\0\xff"
_NAMES = (
    "two words",
    " edges ",
    "new\nline",
    "tab\t",
    "-rf",
    "*",
    "$HOME `id`",
    "quote'\"",
    "größe-猫-🐈",
    "back\\slash",
)


@topic.inside("text comes back as it was written")
async def text(sandbox: Sandbox) -> None:
    content = "first\nsecond, größer than 猫 🐈\n\ttabbed, and no newline at the end"
    await sandbox.write_file("text.txt", content)
    equal("the file", (await sandbox.read_file("text.txt")).decode(), content)
    equal("what a command reads", await shell(sandbox, "cat text.txt"), content)


@topic.inside("binary data comes back as it was written")
async def binary(sandbox: Sandbox) -> None:
    await sandbox.write_file("binary", _EVERY_BYTE)
    equal("the file", await sandbox.read_file("binary"), _EVERY_BYTE)


@topic.inside("an empty file comes back empty")
async def empty(sandbox: Sandbox) -> None:
    await sandbox.write_file("empty", b"")
    equal("the file", await sandbox.read_file("empty"), b"")
    equal("its size inside", await shell(sandbox, "wc -c < empty"), (await shell(sandbox, "printf '' | wc -c")))


@topic.inside("50 MiB come back as they were written", seconds=60)
async def large(sandbox: Sandbox) -> None:
    content = os.urandom(MIB) * 50
    await sandbox.write_file("large", content)
    try:
        that(await sandbox.read_file("large") == content, "50 MiB came back changed")
    finally:
        await shell(sandbox, "rm -f large")


@topic.inside("names with spaces, newlines and Unicode are names")
async def names(sandbox: Sandbox) -> None:
    for name in _NAMES:
        await sandbox.write_file(f"names/{name}", name)
    for name in _NAMES:
        equal(f"the file {name!r}", (await sandbox.read_file(f"names/{name}")).decode(), name)
    equal("the listing", [info.path for info in await sandbox.list_files("names")], sorted(_NAMES))


@topic.inside("a name that is no text does not spoil the listing of a folder")
async def names_that_are_no_text(sandbox: Sandbox) -> None:
    code = """
os.mkdir(b"odd")
for name in (b"\\xff\\xfe", b"good"):
    open(b"odd/" + name, "w").close()
"""
    await probe(sandbox, code)
    listed = [info.path for info in await sandbox.list_files("odd")]
    that(len(listed) == 2 and "good" in listed, f"two files are listed as {listed!r}")


@topic.inside("the folders that a file is to be in are made")
async def folders_are_made(sandbox: Sandbox) -> None:
    await sandbox.write_file("made/for/it/file", b"here")
    equal("the file", await sandbox.read_file("made/for/it/file"), b"here")


@topic.inside("several files are written at once, or it is a typed error")
async def several(sandbox: Sandbox) -> None:
    contents: dict[str, bytes | str] = {"several/a b": "größe", "several/deep/er": _EVERY_BYTE, "/tmp/several": b""}
    await sandbox.write_files(contents)
    for path, content in contents.items():
        wanted = content.encode() if isinstance(content, str) else content
        equal(f"the file {path}", await sandbox.read_file(path), wanted)
    await shell(sandbox, "echo more >> several/deep/er")  # it belongs to who runs commands
    for path in ("several/deep", "several/deep/er/below", "a\0b", "", "/proc/nowhere/file"):
        with refused(SandboxFileError, f"writing {path!r} among others"):
            await sandbox.write_files({"several/good": b"", path: b"x"})


@topic.inside("a file is replaced whole")
async def replaced(sandbox: Sandbox) -> None:
    await sandbox.write_file("replaced", b"a long content")
    await sandbox.write_file("replaced", b"short")
    equal("the file", await sandbox.read_file("replaced"), b"short")


@topic.inside("a file has the mode it was written with, and commands may change it")
async def mode_and_owner(sandbox: Sandbox) -> None:
    await sandbox.write_file("script", "#!/bin/sh\necho ran\n", mode=0o750)
    equal("the mode", await shell(sandbox, "stat -c %a script"), "750\n")
    equal("what it prints", (await sandbox.exec(["./script"])).stdout, "ran\n")
    equal("the file", await shell(sandbox, "echo more >> script && tail -n 1 script && rm script"), "more\n")


@topic.around("the files of the spec are there from the start")
async def files_of_the_spec(lab: Lab) -> None:
    files: dict[str, str | bytes] = {"given/text": "größe", "/tmp/absolute": b"\0\xff"}
    async with lab.open(files=files) as sandbox:
        equal("a text", await sandbox.read_file("given/text"), "größe".encode())
        equal("what a command reads", await shell(sandbox, "cat given/text"), "größe")
        equal("one by its absolute path", await sandbox.read_file("/tmp/absolute"), b"\0\xff")


@topic.around("a file of the spec that cannot be there is a typed error")
async def impossible_files_of_the_spec(lab: Lab) -> None:
    with refused(SandboxSpecError, "opening a sandbox with a file below /proc", seconds=20):
        async with lab.open(files={"/proc/nowhere/file": b""}):
            pass


@topic.inside("what is not there is not found")
async def missing(sandbox: Sandbox) -> None:
    with refused(SandboxFileError, "reading a file that is not there", "not_found"):
        await sandbox.read_file("nowhere/file")
    with refused(SandboxFileError, "listing a folder that is not there", "not_found"):
        await sandbox.list_files("nowhere")


@topic.inside("a folder cannot be read or written as a file, nor a file listed")
async def directory(sandbox: Sandbox) -> None:
    await sandbox.write_file("folder/file", b"")
    with refused(SandboxFileError, "reading a folder", "is_a_directory"):
        await sandbox.read_file("folder")
    with refused(SandboxFileError, "writing a folder", "is_a_directory"):
        await sandbox.write_file("folder", b"")
    with refused(SandboxFileError, "writing below a file", "not_a_directory"):
        await sandbox.write_file("folder/file/below", b"")
    with refused(SandboxFileError, "listing a file", "not_a_directory"):
        await sandbox.list_files("folder/file")


@topic.inside("a file that the user may not read is not read")
async def permission(sandbox: Sandbox) -> None:
    if (await shell(sandbox, "id -u")).strip() == "0":
        raise NotShownError("commands run as root, who may read everything")
    await sandbox.write_file("closed", b"closed", mode=0)
    with refused(SandboxFileError, "reading a file without permission", "permission"):
        await sandbox.read_file("closed")
    await shell(sandbox, "mkdir shut && chmod 0 shut")
    with refused(SandboxFileError, "writing into a folder without permission", "permission"):
        await sandbox.write_file("shut/file", b"")
    with refused(SandboxFileError, "listing a folder without permission", "permission"):
        await sandbox.list_files("shut")


@topic.inside("a path that no file can have is refused")
async def invalid_paths(sandbox: Sandbox) -> None:
    for path in ("", "a\0b", "x" * 5000, "x" * 300):
        with refused(SandboxFileError, f"reading {path[:8]!r} ({len(path)} characters)"):
            await sandbox.read_file(path)
        with refused(SandboxFileError, f"writing {path[:8]!r} ({len(path)} characters)"):
            await sandbox.write_file(path, b"")


@topic.inside("a file over the limit is not read, and costs no more for being larger")
async def over_the_limit(sandbox: Sandbox) -> None:
    await sandbox.write_file("ten", b"0123456789")
    equal("ten bytes with a limit of ten", await sandbox.read_file("ten", limit=10), b"0123456789")
    with refused(OutputLimitExceededError, "ten bytes with a limit of nine"):
        await sandbox.read_file("ten", limit=9)
    await shell(sandbox, "truncate -s 100G sparse")
    with refused(OutputLimitExceededError, "reading 100 GiB"):
        await sandbox.read_file("sparse")
    await shell(sandbox, "rm sparse")


@topic.inside("a pipe is neither read nor written, nor waited for")
async def pipe(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkfifo pipe")
    with refused(SandboxFileError, "reading a named pipe", "not_a_file"):
        await sandbox.read_file("pipe")
    with at_once("writing a named pipe"):
        try:
            await sandbox.write_file("pipe", b"x")
        except SandboxFileError:
            return
    equal("what took the place of the pipe", await sandbox.read_file("pipe"), b"x")


@topic.inside("a device is not read")
async def device(sandbox: Sandbox) -> None:
    for path in ("/dev/zero", "/dev/random", "/dev/full"):
        with refused(SandboxFileError, f"reading {path}", "not_a_file"):
            await sandbox.read_file(path)
    with refused(SandboxFileError, "reading /dev/tty", "not_a_file", "not_found"):
        await sandbox.read_file("/dev/tty")


@topic.inside("a listing has the kinds, sizes and modes of what is there, in order")
async def listing(sandbox: Sandbox) -> None:
    await sandbox.write_file("listed/b", b"12345", mode=0o640)
    await sandbox.write_file("listed/a/deep", b"1")
    await shell(sandbox, "cd listed && mkfifo d && ln -s /etc c && chmod 700 a")
    flat = {info.path: info for info in await sandbox.list_files("listed")}
    equal("the names", list(flat), ["a", "b", "c", "d"])
    equal("the kinds", [info.kind for info in flat.values()], ["directory", "file", "symlink", "other"])
    equal("size and mode of a file", (flat["b"].size, flat["b"].mode), (5, 0o640))
    equal("mode of a folder", flat["a"].mode, 0o700)
    deep = [info.path for info in await sandbox.list_files("listed", recursive=True)]
    equal("the names with those below", deep, ["a", "a/deep", "b", "c", "d"])
