"""JSON lines that survive a killed writer."""

import os
import signal
import subprocess
import sys
import time

import pytest
from msgspec import Struct

from moonmill.errors import RunDirectoryError
from moonmill.jsonl import JsonlWriter, read_jsonl, read_lines


class Line(Struct, frozen=True):
    n: int
    text: str = ""


def write(path, *lines):
    writer = JsonlWriter(path)
    for line in lines:
        writer.append(line)
    writer.close()


def test_what_is_written_is_read_in_order(tmp_path):
    lines = [Line(i, f"line\n{i} …") for i in range(100)]
    write(tmp_path / "log", *lines)
    assert list(read_jsonl(tmp_path / "log", Line)) == lines


def test_a_second_writer_appends(tmp_path):
    write(tmp_path / "log", Line(1))
    write(tmp_path / "log", Line(2))
    assert [line.n for line in read_jsonl(tmp_path / "log", Line)] == [1, 2]


def test_a_missing_file_has_no_lines(tmp_path):
    assert list(read_jsonl(tmp_path / "none", Line)) == []


def test_a_line_is_there_for_readers_before_the_file_is_closed(tmp_path):
    writer = JsonlWriter(tmp_path / "log")
    writer.append(Line(1))
    assert list(read_jsonl(tmp_path / "log", Line)) == [Line(1)]
    writer.sync()
    writer.close()


@pytest.mark.parametrize("torn", [b"{", b'{"n":2', b'{"n":2,"text":"' + b"x" * 200_000])
def test_a_torn_last_line_is_passed_over_and_cut_off_by_the_next_writer(tmp_path, torn):
    path = tmp_path / "log"
    write(path, Line(1))
    with open(path, "ab") as file:
        file.write(torn)
    assert list(read_jsonl(path, Line)) == [Line(1)]
    write(path, Line(3))
    assert list(read_jsonl(path, Line)) == [Line(1), Line(3)]


def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"n":1')
    write(path)
    assert path.read_bytes() == b""


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"n":1}\n{"n":"two"}\n{"n":3}\n')
    lines = read_jsonl(path, Line)
    assert next(lines) == Line(1)
    with pytest.raises(RunDirectoryError, match=r"log, line 2 cannot be read"):
        next(lines)


def test_a_path_that_cannot_be_written_is_a_clear_error(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"cannot write .*/no/log: No such file or directory"):
        JsonlWriter(tmp_path / "no" / "log")


def test_a_path_that_cannot_be_read_is_a_clear_error(tmp_path):
    with pytest.raises(RunDirectoryError, match="cannot be read: Is a directory"):
        list(read_jsonl(tmp_path, Line))


def test_a_writer_killed_at_any_moment_leaves_whole_lines(tmp_path):
    path = tmp_path / "log"
    script = (
        "import sys; from pathlib import Path; from moonmill.jsonl import JsonlWriter\n"
        "w = JsonlWriter(Path(sys.argv[1])); i = 0\n"
        "while True: w.append({'n': i, 'text': 'x' * (i % 5000)}); i += 1\n"
    )
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", script, str(path)])
        before = path.stat().st_size if path.exists() else 0
        while not path.exists() or path.stat().st_size < before + 100_000:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        JsonlWriter(path).close()
        assert all(line.text == "x" * (line.n % 5000) for line in read_jsonl(path, Line))


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "log").write_text('{"n":1}\n\n{"n":2,"text":"\ufeff"}\n', encoding="utf-8-sig")
    assert list(read_lines(tmp_path / "log", "it")) == [(1, b'{"n":1}\n'), (3, '{"n":2,"text":"\ufeff"}\n'.encode())]
    write(tmp_path / "mine", Line(1))
    (tmp_path / "mine").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "mine").read_bytes())
    assert list(read_jsonl(tmp_path / "mine", Line)) == [Line(1)]
