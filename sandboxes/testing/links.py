"""Links lead nowhere but to the sandbox's own files, also while they are changed."""

import os
from pathlib import Path

from moonmill.sandboxes.errors import OutputLimitExceededError, SandboxFileError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import Topic
from moonmill.sandboxes.testing.expect import equal, new_marker, refused, remove, running, shell, that
from moonmill.sandboxes.testing.lab import Lab

topic = Topic("links")
_TRIES = 60
_SWAPPING = """
import os, sys, time
path, target, _ = sys.argv[1:]
os.makedirs("race", exist_ok=True)
end = time.monotonic() + 20
while time.monotonic() < end:
    for make in (lambda: os.symlink(target, path), lambda: open(path, "w").close()):
        try:
            os.unlink(path)
        except OSError:
            pass
        try:
            make()
        except OSError:
            pass
"""
"""Makes a path a link and a file by turns, for no longer than a case may take."""


@topic.inside("a link to a file of the sandbox is followed")
async def followed(sandbox: Sandbox) -> None:
    await sandbox.write_file("linked/file", b"content")
    await shell(sandbox, "ln -s file linked/link")
    equal("what the link leads to", await sandbox.read_file("linked/link"), b"content")


@topic.inside("a link that leads nowhere, or in a circle, is a typed error")
async def dangling(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkdir loops && cd loops && ln -s nowhere dangling && ln -s b a && ln -s a b && ln -s . self")
    with refused(SandboxFileError, "reading a link to nothing", "not_found"):
        await sandbox.read_file("loops/dangling")
    with refused(SandboxFileError, "reading a circle of links"):
        await sandbox.read_file("loops/a")
    listed = [info.path for info in await sandbox.list_files("loops", recursive=True)]
    equal("a listing with a link to its own folder", listed, ["a", "b", "dangling", "self"])


@topic.around("a link to a file of the host does not read it", promise="files")
async def out(lab: Lab) -> None:
    sandbox = await lab.sandbox()
    secrets = [folder / "secret" for folder in lab.host.folders]
    await shell(sandbox, "mkdir -p out && ln -sfn / out/root && ln -sfn /proc/1/root out/first")
    for number, secret in enumerate(secrets):
        await shell(sandbox, f"ln -s {secret} out/{number}")
        for path in (f"out/{number}", str(secret), f"out/root{secret}", f"out/first{secret}", f"../../../..{secret}"):
            that(await _content(sandbox, path) != lab.host.key.encode(), f"{path} leads to a file of the host")


@topic.around("a link to a folder of the host writes nothing there", promise="files")
async def written_through(lab: Lab) -> None:
    sandbox = await lab.sandbox()
    for number, folder in enumerate(lab.host.folders):
        await shell(
            sandbox, f"mkdir -p through && ln -s {folder} through/{number} && ln -s {folder}/link through/f{number}"
        )
        for path in (f"through/{number}/file", f"through/f{number}", f"{folder}/absolute"):
            await _write(sandbox, path)
        written = _new_in(folder)
        await remove(sandbox, [folder], "file", "link", "absolute")
        equal("what is in a folder of the host", written, [])


@topic.around("a file that becomes a link while it is read does not lead out", promise="files")
async def race_of_reading(lab: Lab) -> None:
    sandbox = await lab.sandbox()
    for folder in lab.host.folders[:1]:
        marker = new_marker()
        await _swap(sandbox, "race/read", str(folder / "secret"), marker)
        for _ in range(_TRIES):
            that(await _content(sandbox, "race/read") != lab.host.key.encode(), "a file of the host was read")
        await _stop(sandbox, marker)


@topic.around("a file that becomes a link while it is written does not lead out", promise="files")
async def race_of_writing(lab: Lab) -> None:
    sandbox = await lab.sandbox()
    folder, marker = lab.host.folders[0], new_marker()
    await _swap(sandbox, "race/write", str(folder), marker)
    for _ in range(_TRIES):
        await _write(sandbox, "race/write/raced")
        await _write(sandbox, "race/write")
    await _stop(sandbox, marker)
    written = _new_in(folder)
    await remove(sandbox, [folder], "raced")
    equal("what is in a folder of the host", written, [])


async def _swap(sandbox: Sandbox, path: str, target: str, marker: str) -> None:
    code = f"import os\nif os.fork():\n    os._exit(0)\nos.closerange(0, 3)\n{_SWAPPING}"
    await sandbox.exec(["python3", "-ISc", code, path, target, marker])


async def _stop(sandbox: Sandbox, marker: str) -> None:
    that(bool(await running(sandbox, marker, kill=True)), "what changes a file into a link did not run")


async def _content(sandbox: Sandbox, path: str) -> bytes:
    try:
        return await sandbox.read_file(path)
    except (SandboxFileError, OutputLimitExceededError):
        return b""


async def _write(sandbox: Sandbox, path: str) -> None:
    try:
        await sandbox.write_file(path, b"from inside")
    except SandboxFileError:
        return


def _new_in(folder: Path) -> list[str]:
    """What is in a folder of the host that was not put there by it."""
    return sorted({*os.listdir(folder)} - {"secret", "socket"})
