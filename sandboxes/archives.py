"""Folders as tar archives, on the host's side. What comes out of a sandbox is read as from an attacker."""

import errno
import io
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
    no path in between that somebody could have prepared. (`tarfile` looks at paths before it uses them.) No more is
    written than is in the archive.

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
                if member.isdir():
                    os.close(_folder(root, parts))
                elif not parts or member.issparse():
                    raise SandboxFileError(path, "invalid", f"{member.name!r} in it is not as a file should be")
                elif member.issym():
                    links.append((parts, _target_of(member, parts, path)))
                elif member.islnk():
                    _add_name(root, _parts_of(member.linkname, path), parts)
                elif member.isreg() and (content := opened.extractfile(member)):
                    _write(root, parts, content, member.mode)
                else:
                    raise SandboxFileError(path, "invalid", f"{member.name!r} in it is no file that can be taken out")
        for parts, where in links:
            with _opened(root, parts[:-1]) as folder:
                _remove(parts[-1], folder)
                os.symlink(where, parts[-1], dir_fd=folder)
    except (tarfile.TarError, ValueError) as e:
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
    """Where a link leads. Raises `SandboxFileError` where that is, or might be, outside.

    It may lead up as far as its own folder is deep, and then down: what it passes there may be a link as well, but one
    that leads inside. From there up again could be anywhere.
    """
    target = PurePosixPath(member.linkname).parts
    ups = next((i for i, part in enumerate(target) if part != ".."), len(target))
    if ups >= len(parts) or ".." in target[ups:] or member.linkname.startswith("/"):
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


@contextmanager
def _opened(root: int, parts: tuple[str, ...]) -> Iterator[int]:
    folder = _folder(root, parts)
    try:
        yield folder
    finally:
        os.close(folder)


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _add_name(root: int, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Give a file that has been written a second name."""
    if not old:
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    with _opened(root, old[:-1]) as source, _opened(root, new[:-1]) as folder:
        if old != new:
            _remove(new[-1], folder)
            os.link(old[-1], new[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)


def _write(root: int, parts: tuple[str, ...], content: IO[bytes], mode: int) -> None:
    with _opened(root, parts[:-1]) as folder:
        _remove(parts[-1], folder)  # it may have other names
        fd = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with os.fdopen(fd, "wb") as file:
            shutil.copyfileobj(content, file)
            os.fchmod(fd, mode & 0o755)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's: whoever unpacks it owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
