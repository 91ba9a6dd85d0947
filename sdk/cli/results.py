"""Results keep stdout to themselves: whatever else is printed while a command runs goes to stderr.

An author's code, what it calls and the programs it starts may print as they like, and `--json` can still be read. What
stdout cannot take ends the command: in no words where its reader has left, as `| head` does.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO

import click

_results: TextIO | None = None


class StdoutError(click.ClickException):
    """Stdout does not take what is written to it: its disk is full."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: cannot write to stdout: {self.message}", file=file, err=True)


class Command(click.Command):
    """A command whose results alone reach stdout."""

    def invoke(self, ctx: click.Context) -> Any:
        with _alone_on_stdout():
            return super().invoke(ctx)


def results() -> TextIO:
    """The stream for results: the real stdout."""
    return _results or sys.stdout


@contextmanager
def own_stdout() -> Iterator[None]:
    """Stdout for a whole process. Nothing goes there afterwards: threads a tool has left behind print to the last."""
    stdout = sys.stdout = sys.stdout and _stream_to(1)
    try:
        yield
    finally:
        sys.stdout = sys.stderr
        if stdout is not None:
            with suppress(StdoutError, click.exceptions.Exit):  # told already: this is what could not be written
                stdout.close()
        _lead_to_stderr()


@contextmanager
def _alone_on_stdout() -> Iterator[None]:
    global _results
    before = sys.stdout, _results
    with _real_stdout() as _results:
        sys.stdout = sys.stderr
        try:
            yield
            _results.flush()
        finally:
            sys.stdout, _results = before


@contextmanager
def _real_stdout() -> Iterator[TextIO]:
    """A stream to where stdout leads now; file descriptor 1 leads to stderr meanwhile."""
    stdout = sys.stdout
    if stdout is None:  # closed by whoever started us
        with open(os.devnull, "w") as nowhere:
            yield nowhere
    elif not _is_file(stdout):  # a test's, or a notebook's
        yield stdout
    else:
        stdout.flush()
        stream = _stream_to(os.dup(1))
        _lead_to_stderr()
        try:
            yield stream
        finally:
            os.dup2(stream.fileno(), 1)
            with suppress(StdoutError, click.exceptions.Exit):
                stream.close()


class _Stdout(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as e:
            raise click.exceptions.Exit(1) from e
        except OSError as e:
            raise StdoutError(e.strerror or str(e)) from e


def _stream_to(fd: int) -> TextIO:
    """A stream in stdout's encoding that can write every text. Closing it leaves file descriptor 1 open."""
    raw = _Stdout(fd, "w", closefd=fd != 1)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), sys.stdout.encoding, errors="backslashreplace", line_buffering=raw.isatty()
    )


def _lead_to_stderr() -> None:
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def _is_file(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (AttributeError, io.UnsupportedOperation):
        return False
