"""What comes out of a sandbox is written to the folder that was named, and nowhere else."""

import io
import os
import tarfile
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
        ([("folder", None, FOLDER), ("hard", "folder", HARD)], "cannot be written to"),
        ([("hard", ".", HARD)], "cannot be written to"),
        ([("pipe", None, tarfile.FIFOTYPE)], "no file that can be taken out"),
        ([("disk", None, tarfile.BLKTYPE)], "no file that can be taken out"),
        ([("hard", "/etc/passwd", HARD)], "leads out of it"),
        ([("hard", "nothing", HARD)], "cannot be written to"),
        ([("here", b"x", FILE), ("here/below", b"y", FILE)], "cannot be written to .*Not a directory"),
    ],
)
def test_what_would_lead_out_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes | str | None, bytes]], why: str
) -> None:
    inside = tmp_path / "inside"
    with pytest.raises(SandboxFileError, match=why):
        archives.unpack(archive(*members), "folder", inside)
    assert [p.name for p in tmp_path.iterdir()] == ["inside"]


def test_a_link_is_not_followed_by_what_comes_after_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "was_here").symlink_to(outside)
    with pytest.raises(SandboxFileError, match="cannot be written"):
        archives.unpack(archive(("was_here/evil", b"x", FILE)), "folder", inside)
    with pytest.raises(SandboxFileError, match="cannot be written"):
        archives.unpack(archive(("new", "deep/er", LINK), ("new/file", b"x", FILE)), "folder", tmp_path / "other")
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
        archives.unpack(archives.pack(source), "folder", tmp_path / "copy")
    copy = tmp_path / "copy"
    assert sorted(str(p.relative_to(copy)) for p in copy.rglob("*")) == sorted(
        str(p.relative_to(source)) for p in source.rglob("*")
    )
    assert (copy / "link").read_bytes() == bytes(range(256))
    assert (copy / "second").read_text() == "#!/bin/sh"
    assert (copy / "run").stat().st_mode & 0o7777 == 0o755, "neither setuid nor for all to write"


def test_many_names_of_a_file_take_no_more_than_one(tmp_path: Path) -> None:
    members = [("one", b"x" * 100_000, FILE), *[(f"name{i}", "one", HARD) for i in range(1000)]]
    archives.unpack(archive(*members), "folder", tmp_path / "inside")
    assert (tmp_path / "inside" / "one").stat().st_nlink == 1001


def test_an_archive_that_is_none_is_an_error_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SandboxFileError, match="could not be packed"):
        archives.unpack(b"nonsense" * 100, "folder", tmp_path / "inside")
