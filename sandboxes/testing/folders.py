"""Whole folders go in and come out, and nothing comes out that must not."""

import os
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio.to_thread import run_sync

from moonmill.sandboxes.errors import OutputLimitExceededError, SandboxFileError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import BrokenPromiseError, Topic
from moonmill.sandboxes.testing.expect import PREFIX, at_once, equal, probe, refused, shell, that
from moonmill.sandboxes.testing.lab import Lab
from moonmill.sandboxes.types import MIB

topic = Topic("folders")
_MANY = 2000


@topic.inside("a folder comes back as it was uploaded")
async def round_trip(sandbox: Sandbox) -> None:
    async with _host_folder() as host:
        source = host / "source"
        (source / "deep" / "deeper").mkdir(parents=True)
        (source / "void").mkdir()
        (source / "deep" / "deeper" / "two words").write_bytes(bytes(range(256)))
        (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "run.sh").chmod(0o755)
        (source / "link").symlink_to("run.sh")
        await sandbox.upload(source, "sent/there")
        equal("what an uploaded program prints", await shell(sandbox, "sent/there/run.sh"), "ran\n")
        await shell(sandbox, "echo new > sent/there/deep/new")  # it belongs to who runs commands
        await sandbox.download("sent/there", host / "back")
        got = {path.relative_to(host / "back").as_posix(): path for path in (host / "back").rglob("*")}
        there = {"deep", "deep/deeper", "deep/deeper/two words", "deep/new", "link", "run.sh", "void"}
        equal("what came back", set(got), there)
        equal("a file", got["deep/deeper/two words"].read_bytes(), bytes(range(256)))
        that(bool(got["run.sh"].stat().st_mode & stat.S_IXUSR), "a program came back without its execute permission")


@topic.inside("names come out as they are, also those that are no text")
async def odd_names(sandbox: Sandbox) -> None:
    code = """
os.mkdir("odd-names")
for name in (b"two words", b"new\\nline", b"-rf", b"\\xff\\xfe", "größe-猫".encode(), b"x" * 255):
    with open(b"odd-names/" + name, "wb") as file:
        file.write(name)
"""
    await probe(sandbox, code)
    async with _host_folder() as host:
        await sandbox.download("odd-names", host / "out")
        for path in (host / "out").iterdir():
            equal(f"the file {path.name!r}", path.read_bytes(), os.fsencode(path.name))
        equal("the files that came out", len(list((host / "out").iterdir())), 6)


@topic.inside("a folder is added to what is there")
async def into_what_is_there(sandbox: Sandbox) -> None:
    await sandbox.write_file("both/old", b"old")
    async with _host_folder() as host:
        (host / "new").write_bytes(b"new")
        await sandbox.upload(host, "both")
    equal("the files", [info.path for info in await sandbox.list_files("both")], ["new", "old"])


@topic.inside("thousands of files come out, and in", seconds=60)
async def many(sandbox: Sandbox) -> None:
    code = """
os.mkdir("many")
for i in range(given["count"]):
    with open(f"many/{i}", "w") as file:
        file.write(str(i))
"""
    await probe(sandbox, code, count=_MANY, timeout=20)
    async with _host_folder() as host:
        with at_once(f"downloading {_MANY} files", 20):
            await sandbox.download("many", host / "many")
        equal("the files that came out", len(list((host / "many").iterdir())), _MANY)
        with at_once(f"uploading {_MANY} files", 20):
            await sandbox.upload(host / "many", "again")
    equal("the files that went in", len(await sandbox.list_files("again")), _MANY)
    await shell(sandbox, "rm -r many again", timeout=20)


@topic.inside("of a folder over the limit nothing is taken, however little it is on its disk")
async def over_the_limit(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkdir big && cd big && for i in 1 2 3 4; do head -c 1000000 /dev/zero > $i; done")
    async with _host_folder() as host:
        with refused(OutputLimitExceededError, "4 MB with a limit of 3 MiB", seconds=20):
            await sandbox.download("big", host / "big", limit=3 * MIB)
        await shell(sandbox, "cd big && rm * && truncate -s 100G sparse")
        with refused(OutputLimitExceededError, "a sparse file of 100 GiB", seconds=20):
            await sandbox.download("big", host / "sparse", limit=3 * MIB)
    await shell(sandbox, "rm -r big")


@topic.inside("a folder that is not there, or is a file, does not come out")
async def not_a_folder(sandbox: Sandbox) -> None:
    await sandbox.write_file("flat", b"")
    async with _host_folder() as host:
        with refused(SandboxFileError, "downloading a folder that is not there", "not_found"):
            await sandbox.download("no-such-folder", host / "x")
        with refused(SandboxFileError, "downloading a file", "not_a_directory"):
            await sandbox.download("flat", host / "x")
        with refused(SandboxFileError, "uploading into a file", "not_a_directory"):
            await sandbox.upload(host, "flat")


@topic.around("links to outside do not come out, nor what they lead to")
async def links_to_outside(lab: Lab) -> None:
    sandbox = await lab.sandbox()
    secret = str(lab.host.folders[0] / "secret")
    for name, target in (("absolute", secret), ("upwards", "../../../../../../etc"), ("root", "/")):
        await shell(sandbox, f"mkdir -p links-{name}/in && ln -s {target} links-{name}/in/leaves")
        async with _host_folder() as host:
            with refused(SandboxFileError, f"downloading a link to {target}"):
                await sandbox.download(f"links-{name}", host / "out")
            _nothing_else_came_out(host)


@topic.inside("devices and pipes do not come out")
async def devices(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkdir special && mkfifo special/pipe")
    async with _host_folder() as host:
        with refused(SandboxFileError, "downloading a named pipe"):
            await sandbox.download("special", host / "out")
        _nothing_else_came_out(host)
        with refused(SandboxFileError, "downloading /dev"):
            await sandbox.download("/dev", host / "dev")
        _nothing_else_came_out(host)


@topic.inside("nothing that comes out is anybody else's, or runs as its owner")
async def owners_and_modes(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkdir modes && cp /bin/true modes/root && chmod 6777 modes/root && chmod 777 modes")
    async with _host_folder() as host:
        await sandbox.download("modes", host / "out")
        mode = (host / "out" / "root").stat().st_mode
        that(not mode & (stat.S_ISUID | stat.S_ISGID), f"a program came out with the mode {stat.S_IMODE(mode):o}")
        that(not mode & stat.S_IWOTH, f"a file that everybody may write came out: mode {stat.S_IMODE(mode):o}")


@topic.inside("what a link of the host leads to does not go in unless it is in the folder")
async def links_of_the_host(sandbox: Sandbox) -> None:
    async with _host_folder() as host:
        (host / "private").write_text("a secret of the host")
        (host / "source").mkdir()
        (host / "source" / "leaves").symlink_to(host / "private")
        try:
            await sandbox.upload(host / "source", "from-host")
        except (SandboxFileError, OSError):
            return
        kinds = {info.path: info.kind for info in await sandbox.list_files("from-host")}
        that(kinds.get("leaves") != "file", "a file outside of the uploaded folder went in")


@asynccontextmanager
async def _host_folder() -> AsyncIterator[Path]:
    folder = await run_sync(tempfile.TemporaryDirectory, None, PREFIX)
    try:
        yield Path(folder.name)
    finally:
        await run_sync(folder.cleanup)


def _nothing_else_came_out(host: Path) -> None:
    """Raise where there is anything below `host` but files, folders and links to these, in the folder it was put in."""
    root = host.resolve()
    for path in host.rglob("*"):
        mode = path.lstat().st_mode
        inside = path.resolve().is_relative_to(root)
        if not inside or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise BrokenPromiseError(f"{path.relative_to(host)} came out, with the mode {stat.filemode(mode)}")
