"""Folders as tar archives, on the host's side. What comes out of a sandbox is read as from an attacker.

What always holds of one that comes out: all of it is looked at before any of it is written; no entry costs more than
another, wherever it lies; and it is in its place as a whole, or not at all.
"""

import io
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath

from moonmill.sandboxes.errors import SandboxFileError

_DEEPEST = 64
"""Folders that one may lie in below another. As many are open at once."""
_MOST_ENTRIES = 200_000
_ASIDE = ".moonmill-download-"
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def pack(source: Path) -> bytes:
    """What is in a folder. Raises `OSError` where it cannot be read."""
    if not source.is_dir():
        raise NotADirectoryError(f"{source} is no folder")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:  # no further header for each
        archive.add(source, arcname=".", filter=_anonymous)
    return buffer.getvalue()


def of(files: Mapping[str, bytes]) -> bytes:
    """Files by path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def unpack(archive: bytes, path: str, target: Path, stop: threading.Event) -> None:
    """Put what is in an archive into a folder, and nothing anywhere else.

    It is written to a new folder in `target`, folder by folder through open descriptors that follow no link, and moved
    when it is complete: there is no path in between that somebody could have prepared. (`tarfile` looks at paths before
    it uses them.) No more is written than is in the archive.

    Args:
        archive: a tar of the folder.
        path: what the folder is called in errors.
        target: where it comes to. Files that are there already are replaced, folders added to.
        stop: once it is set, this returns soon, and `target` is as it was.

    Raises:
        SandboxFileError: something in it must not come out, such as a device, or a link to somewhere outside; or it
            cannot be written.
    """
    try:
        entries = _entries(archive, path, stop)
        with _aside(target) as aside:
            _write(archive, entries, aside, stop)
            with _opened(aside / "files") as source, _opened(target, follow=True) as place:
                for really in (False, True):
                    _move(source, place, really)
    except _StoppedError:
        pass
    except (tarfile.TarError, RecursionError) as e:
        raise SandboxFileError(path, "invalid", f"it could not be packed: {e}") from e
    except (OSError, ValueError) as e:
        why = (isinstance(e, OSError) and e.strerror) or str(e)
        raise SandboxFileError(path, "invalid", f"it cannot be written to {target}: {why}") from e


class _StoppedError(Exception):
    """Nobody wants it any more."""


def _entries(archive: bytes, path: str, stop: threading.Event) -> dict[str, tarfile.TarInfo]:
    """What is in an archive, by name, each folder before what is in it, and all that next to each other.

    Raises:
        SandboxFileError: something in it must not come out.
    """
    found: dict[str, tarfile.TarInfo] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            for member in opened:
                _raise_if(stop)
                name = _name_of(member.name, path)
                if name in found:
                    raise _refusal(path, member, "is in it twice")
                if len(found) == _MOST_ENTRIES:
                    raise SandboxFileError(path, "invalid", f"it has more than {_MOST_ENTRIES:,} files and folders")
                if wrong := _what_is_wrong(member, name, archive):
                    raise _refusal(path, member, wrong)
                found[name] = member
    except ValueError as e:
        raise tarfile.ReadError(str(e)) from e
    for name, member in found.items():
        folder = posixpath.dirname(name)
        if folder and not (folder in found and found[folder].isdir()):
            raise _refusal(path, member, f"lies in {folder!r}, which is no folder in it")
        if member.islnk():
            source = found.get(_name_of(member.linkname, path))
            if source is None or not source.isreg():
                raise _refusal(path, member, f"is the same as {member.linkname!r}, which is no file in it")
    return dict(sorted(found.items()))


def _name_of(name: str, path: str) -> str:
    """A member's name; empty for the folder itself. Raises `SandboxFileError` where it leads out."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SandboxFileError(path, "invalid", f"{name!r:.200} in it leads out of it")
    if len(parts) > _DEEPEST:
        raise SandboxFileError(path, "invalid", f"{name!r:.200} in it lies deeper than {_DEEPEST} folders")
    return "/".join(parts)


def _what_is_wrong(member: tarfile.TarInfo, name: str, archive: bytes) -> str:
    """Why a member must not come out; empty where it may."""
    if member.isdir():
        return ""
    if not name or member.issparse():
        return "is not as a file should be"
    if member.issym():
        return _what_is_wrong_with_link(member.linkname, name)
    if member.isreg():
        end = member.offset_data + member.size
        return "" if member.offset_data <= end <= len(archive) else "is longer than what is there of it"
    return "" if member.islnk() else "is no file that can be taken out"


def _what_is_wrong_with_link(target: str, name: str) -> str:
    """Why a link leads outside, or might; empty where it does not.

    It may lead up as far as its own folder is deep, and then down: what it passes there may be a link as well, but one
    that leads inside. From there up again could be anywhere.
    """
    parts = PurePosixPath(target).parts
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/"):
        return f"leads out, to {target!r:.200}: a link has to be relative"
    return f"leads out, to {target!r:.200}" if ups > name.count("/") or ".." in parts[ups:] else ""


def _refusal(path: str, member: tarfile.TarInfo, why: str) -> SandboxFileError:
    what = "the link " if member.issym() else ""
    return SandboxFileError(path, "invalid", f"{what}{member.name!r:.200} in it {why}")


def _raise_if(stop: threading.Event) -> None:
    if stop.is_set():
        raise _StoppedError


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A new folder in `target`, removed in the end; with `target`, if that was not there and nothing came of it."""
    is_new = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    try:
        aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=str(target)))
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except BaseException:
        if is_new:
            with suppress(OSError):
                target.rmdir()
        raise


def _write(archive: bytes, entries: Mapping[str, tarfile.TarInfo], aside: Path, stop: threading.Event) -> None:
    """Write entries to the folder `files`. In `shared` each file of several names gets another: one that is near."""
    shared = {_name_of(member.linkname, ""): str(i) for i, member in enumerate(entries.values()) if member.islnk()}
    written = set[str]()
    for name in ("files", "shared"):
        (aside / name).mkdir()
    with closing(_Folders(aside / "files")) as folders, _opened(aside / "shared") as by_number:
        for name, member in entries.items():
            _raise_if(stop)
            folder, last = folders.at(posixpath.dirname(name)), posixpath.basename(name)
            source = _name_of(member.linkname, "") if member.islnk() else name
            if member.isdir():
                if name:
                    os.mkdir(last, dir_fd=folder)
            elif member.issym():
                os.symlink(member.linkname, last, dir_fd=folder)
            elif source in written:
                os.link(shared[source], last, src_dir_fd=by_number, dst_dir_fd=folder)
            else:
                _write_file(archive, entries[source], last, folder)
                if source in shared:
                    written.add(source)
                    os.link(last, shared[source], src_dir_fd=folder, dst_dir_fd=by_number)


def _write_file(archive: bytes, member: tarfile.TarInfo, name: str, folder: int) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    with os.fdopen(fd, "wb") as file:
        file.write(memoryview(archive)[member.offset_data : member.offset_data + member.size])
        os.fchmod(fd, member.mode & 0o755)


def _move(source: int, target: int, really: bool) -> None:
    """Move what is in one folder into another, where it replaces files and is added to folders.

    Raises:
        OSError: one is a folder here and none there; without `really`, which only looks, nothing has been moved yet.
    """
    for name in os.listdir(source):
        is_folder, was_folder = _is_folder(name, source), _is_folder(name, target)
        if is_folder and was_folder:
            with _opened(name, source) as inner, _opened(name, target) as outer:
                _move(inner, outer, really)
        elif was_folder is not None and is_folder != was_folder:
            raise FileExistsError(f"{name!r:.200} is {'a' if was_folder else 'no'} folder there")
        elif really:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _is_folder(name: str, folder: int) -> bool | None:
    """None where there is nothing."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


class _Folders:
    """Folders below a root. Those on the way to the last one stay open: what is next to it costs nothing more."""

    def __init__(self, root: Path) -> None:
        self._open = [("", os.open(root, _OPEN_FOLDER))]

    def at(self, name: str) -> int:
        """A descriptor of a folder, good until the next is asked for."""
        while not f"{name}/".startswith(self._open[-1][0]):
            os.close(self._open.pop()[1])
        prefix, folder = self._open[-1]
        for part in name[len(prefix) :].split("/") if len(name) > len(prefix) else ():
            prefix, folder = f"{prefix}{part}/", os.open(part, _OPEN_FOLDER, dir_fd=folder)
            self._open.append((prefix, folder))
        return folder

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop()[1])


@contextmanager
def _opened(folder: Path | str, within: int | None = None, *, follow: bool = False) -> Iterator[int]:
    fd = os.open(folder, _OPEN_FOLDER & ~(os.O_NOFOLLOW if follow else 0), dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's: whoever unpacks it owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
