"""Folders as tar archives, on the host's side. What comes out of a sandbox is read as from an attacker."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

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

    Raises:
        SandboxFileError: something in it must not come out: a device, or a link to somewhere outside.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            opened.extractall(target, filter="data")
    except tarfile.FilterError as e:
        raise SandboxFileError(path, "invalid", f"it was not taken out: {e}") from e
    except tarfile.TarError as e:
        raise SandboxFileError(path, "invalid", f"it could not be packed: {e}") from e


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's: whoever unpacks it owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
