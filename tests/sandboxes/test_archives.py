"""What comes out of a sandbox is written to the folder that was named, and nowhere else."""

import io
import os
import random
import tarfile
import threading
from pathlib import Path

import pytest

from moonmill.sandboxes import SandboxFileError, archives


def archive(*members: tuple[str, bytes | str | None, bytes]) -> bytes:
    """Members by name, link or content, and type."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as opened:
        for name, content, kind in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            data = content if isinstance(content, bytes) else b""
            member.size = len(data)
            member.linkname = content if isinstance(content, str) else ""
            opened.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def unpack(content: bytes, target: Path, stop: threading.Event | None = None) -> None:
    archives.unpack(content, "folder", target, stop or threading.Event())


def everything(folder: Path) -> dict[str, bytes | None]:
    """Contents by path; None for what is no file."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def heads_without_end() -> bytes:
    """Headers about a member that never comes."""
    member = tarfile.TarInfo("x")
    member.pax_headers = {"comment": "x"}
    return member.tobuf(tarfile.PAX_FORMAT)[:1024] * 2000


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("/etc/evil", b"x", FILE)], "leads out of it"),
        ([("../evil", b"x", FILE)], "leads out of it"),
        ([("a/../../evil", b"x", FILE)], "leads out of it"),
        ([("link", "/etc", LINK)], "leads out, to '/etc'"),
        ([("link", "../..", LINK)], "leads out, to"),
        ([("a/link", "b/../../../x", LINK)], "leads out, to"),
        ([("q/w/up", "../..", LINK), ("out", "q/w/up/../../etc/hostname", LINK)], "leads out, to 'q/w/up"),
        ([(".", b"x", FILE)], "not as a file should be"),
        (
            [("folder", None, FOLDER), ("hard", "folder", HARD)],
            "'hard' in it is the same as 'folder', which is no file",
        ),
        ([("hard", ".", HARD)], "no file in it"),
        ([("hard", "hard", HARD)], "no file in it"),
        ([("pipe", None, tarfile.FIFOTYPE)], "no file that can be taken out"),
        ([("disk", None, tarfile.BLKTYPE)], "no file that can be taken out"),
        ([("hard", "/etc/passwd", HARD)], "leads out of it"),
        ([("hard", "nothing", HARD)], "no file in it"),
        ([("here", b"x", FILE), ("here/below", b"y", FILE)], "'here/below' in it lies in 'here', which is no folder"),
        ([("nowhere/below", b"y", FILE)], "lies in 'nowhere', which is no folder in it"),
        ([("new", "deep/er", LINK), ("new/file", b"x", FILE)], "lies in 'new', which is no folder in it"),
        ([("two", b"x", FILE), ("./two", b"y", FILE)], "'./two' in it is in it twice"),
        ([("/".join("a" * 65), None, FOLDER)], "lies deeper than 64 folders"),
        ([("long", b"x", FILE), ("n" * 300, b"x", FILE)], "cannot be written to .*File name too long"),
    ],
)
def test_what_would_lead_out_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes | str | None, bytes]], why: str
) -> None:
    with pytest.raises(SandboxFileError, match=why):
        unpack(archive(("first", b"x", FILE), *members), tmp_path / "inside")
    assert not [*tmp_path.iterdir()], "nor anything that came before it"


def test_a_link_that_is_there_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "was_here").symlink_to(outside)
    members = [("file", b"x", FILE), ("was_here", None, FOLDER), ("was_here/evil", b"x", FILE)]
    with pytest.raises(SandboxFileError, match=r"cannot be written to .*: 'was_here' is no folder there"):
        unpack(archive(*members), inside)
    assert [p.name for p in inside.iterdir()] == ["was_here"]
    assert not [*outside.iterdir()]


def test_everything_else_comes_out_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "ünï").write_bytes(bytes(range(256)))
    (source / "empty").mkdir()
    (source / "run").write_text("#!/bin/sh")
    (source / "run").chmod(0o4777)
    os.link(source / "run", source / "second")
    (source / "link").symlink_to("deep/er/ünï")
    for _ in range(2):  # over what is there already, too
        unpack(archives.pack(source), tmp_path / "copy")
    copy = tmp_path / "copy"
    assert sorted(str(p.relative_to(copy)) for p in copy.rglob("*")) == sorted(
        str(p.relative_to(source)) for p in source.rglob("*")
    )
    assert (copy / "link").read_bytes() == bytes(range(256))
    assert (copy / "second").read_text() == "#!/bin/sh"
    assert (copy / "run").stat().st_mode & 0o7777 == 0o755, "neither setuid nor for all to write"


def test_it_comes_into_a_folder_that_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    members = [("a", b"new", FILE), ("b", None, FOLDER), ("b/c", b"new", FILE), ("b/d", None, FOLDER)]
    (tmp_path / "b").mkdir()
    for name in ("a", "b/c", "b/e"):
        (tmp_path / name).write_bytes(b"old")
    was = everything(tmp_path)
    (tmp_path / "b/d").write_bytes(b"in the way")
    with pytest.raises(SandboxFileError, match=r"cannot be written to .*: 'd' is no folder there"):
        unpack(archive(*members), tmp_path)
    assert everything(tmp_path) == was | {"b/d": b"in the way"}
    (tmp_path / "b/d").unlink()
    unpack(archive(*members), tmp_path)
    assert everything(tmp_path) == {"a": b"new", "b": None, "b/c": b"new", "b/d": None, "b/e": b"old"}


class StopsAfter(threading.Event):
    """Set once it has been looked at so often."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("looks", [0, 50, 150])
def test_it_stops_when_it_is_told_to_and_leaves_nothing(tmp_path: Path, looks: int) -> None:
    stop = StopsAfter(looks)
    unpack(archive(*((str(i), b"x", FILE) for i in range(100))), tmp_path / "inside", stop)
    assert stop.left == -1, "at the next entry, be it looked at or written"
    assert not [*tmp_path.iterdir()]


def test_no_entry_costs_more_than_another_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order they come in, and wherever the other names of a file are, no folder is opened twice."""
    deep = [(f"{top}/" + "/".join("f" * depth)).rstrip("/") for top in "xy" for depth in range(50)]
    files = [(f"{deep[49 + 50 * (i % 2)]}/{i}", b"x", FILE) for i in range(500)]
    links = [(f"{deep[49 + 50 * (i % 2)]}/link{i}", f"{deep[99 - 50 * (i % 2)]}/{i ^ 1}", HARD) for i in range(500)]
    members = [*((name, None, FOLDER) for name in deep), *files, *links]
    random.Random(1).shuffle(members)
    content, opened, real = archive(*members), list[str](), os.open

    def counting(path: str, *args: int, **kwargs: int | None) -> int:
        opened.append(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", counting)
    unpack(content, tmp_path / "inside")
    assert len(opened) < len(deep) + len(files) + 20
    assert len(everything(tmp_path / "inside")) == len(members)
    assert (tmp_path / "inside" / deep[49] / "0").samefile(tmp_path / "inside" / deep[99] / "link1")


def test_an_archive_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_ENTRIES", 3)
    members = [(str(i), b"x", FILE) for i in range(4)]
    unpack(archive(*members[:3]), tmp_path / "inside")
    with pytest.raises(SandboxFileError, match="it has more than 3 files and folders"):
        unpack(archive(*members), tmp_path / "other")


def test_many_names_of_a_file_take_no_more_than_one(tmp_path: Path) -> None:
    members = [("one", b"x" * 100_000, FILE), *[(f"name{i}", "one", HARD) for i in range(1000)]]
    unpack(archive(*members), tmp_path / "inside")
    assert (tmp_path / "inside" / "one").stat().st_nlink == 1001


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense" * 100,
        archive(("file", b"x" * 5000, FILE))[:2000],
        heads_without_end(),
    ],
)
def test_an_archive_that_is_none_is_an_error_of_the_folder(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SandboxFileError, match=r"could not be packed|is longer than what is there"):
        unpack(content, tmp_path / "inside")


@pytest.mark.parametrize("target", ["file", "file/below", "with a \0", "with a \ud800"])
def test_a_place_where_no_folder_can_be_is_an_error_of_the_folder(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(SandboxFileError, match="cannot be written to"):
        unpack(archive(("a", b"x", FILE)), tmp_path / target)
    assert everything(tmp_path) == {"file": b"mine"}
