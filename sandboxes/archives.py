"""Folders as tar archives, on the host's side. What comes out of a sandbox is read as from an attacker."""

import io
import os
import shutil
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from moonmill.sandboxes.errors import SandboxFileError


def pack(source: Path) -> bytes:
    """What is in a folder. Raises `OSError` where it cannot be read."""
    if not source.is_dir():
        raise NotADirectoryError(f"{source} is no folder")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, arcname=".", filter=_anonymous)
    return buffer.getvalue()


def of(files: Mapping[str, str | bytes]) -> bytes:
    """Files by path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def unpack(archive: bytes, path: str, target: Path) -> None:
    """Put what is in an archive into a folder, and nothing anywhere else.

    Files are written folder by folder through open descriptors that follow no link, and links are made last: there is
    no path in between that somebody could have prepared. (`tarfile` looks at paths before it uses them.)

    Raises:
        SandboxFileError: something in it must not come out: a device, or a link to somewhere outside.
    """
    target.mkdir(parents=True, exist_ok=True)
    links: list[tuple[tuple[str, ...], str]] = []
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            for member in opened:
                parts = _parts_of(member.name, path)
                if member.issym():
                    links.append((parts, _target_of(member, parts, path)))
                elif member.isdir():
                    os.close(_folder(root, parts))
                elif member.isreg() or member.islnk():  # a second name of a file is another file
                    content = opened.extractfile(member)
                    assert content is not None
                    _write(root, parts, content, member.mode)
                else:
                    raise SandboxFileError(path, "invalid", f"{member.name!r} in it is no file that can be taken out")
        for parts, where in links:
            folder = _folder(root, parts[:-1])
            with suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=folder)
            os.symlink(where, parts[-1], dir_fd=folder)
            os.close(folder)
    except (tarfile.TarError, KeyError) as e:
        raise SandboxFileError(path, "invalid", f"it could not be packed: {e}") from e
    except OSError as e:
        raise SandboxFileError(path, "invalid", f"it cannot be written to {target}: {e.strerror}") from e
    finally:
        os.close(root)


def _parts_of(name: str, path: str) -> tuple[str, ...]:
    """The folders and the name of a member. Raises `SandboxFileError` where those lead out."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SandboxFileError(path, "invalid", f"{name!r} in it leads out of it")
    return parts


def _target_of(member: tarfile.TarInfo, parts: tuple[str, ...], path: str) -> str:
    """Where a link leads. Raises `SandboxFileError` where that is outside."""
    depth = len(parts) - 1
    for part in PurePosixPath(member.linkname).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            raise SandboxFileError(path, "invalid", f"the link {member.name!r} in it leads out, to {member.linkname!r}")
    return member.linkname


def _folder(root: int, parts: tuple[str, ...]) -> int:
    """A descriptor of a folder below `root`, which is made where it is not there."""
    here = os.dup(root)
    for part in parts:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=here)
        outer, here = here, os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        os.close(outer)
    return here


def _write(root: int, parts: tuple[str, ...], content: IO[bytes], mode: int) -> None:
    folder = _folder(root, parts[:-1])
    try:
        fd = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with os.fdopen(fd, "wb") as file:
            shutil.copyfileobj(content, file)
            os.fchmod(fd, mode & 0o755)
    finally:
        os.close(folder)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's: whoever unpacks it owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
