"""Results keep stdout to themselves: whatever else is printed while a command runs goes to stderr.

An author's code, what it calls and the programs it starts may print as they like, and `--json` can still be read.
"""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import click

_results: TextIO | None = None


class Command(click.Command):
    """A command whose results alone reach stdout."""

    def invoke(self, ctx: click.Context) -> Any:
        with _alone_on_stdout():
            return super().invoke(ctx)


def results() -> TextIO:
    """The stream for results: the real stdout."""
    return _results or sys.stdout


def leave_stdout() -> None:
    """Nothing more goes to stdout until the process ends: threads a tool has left behind may print to the last."""
    stdout, sys.stdout = sys.__stdout__, sys.stderr
    if stdout is not None:
        try:
            stdout.flush()
        except BrokenPipeError:  # nobody wants what is left: closing loses it, which the interpreter's end would not
            with suppress(BrokenPipeError):
                stdout.close()
    _lead_to_stderr()


def is_abandoned(stream: TextIO) -> bool:
    """Whether whoever read `stream` has gone, as `| head` does. Of interest after a `BrokenPipeError`: whose was it?"""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # asks for nothing, and is told of a broken pipe all the same
    except (AttributeError, io.UnsupportedOperation):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


@contextmanager
def _alone_on_stdout() -> Iterator[None]:
    global _results
    before = sys.stdout, _results
    with _real_stdout() as _results:
        sys.stdout = sys.stderr
        try:
            yield
            _results.flush()
        except BrokenPipeError as e:
            if is_abandoned(_results):
                raise click.exceptions.Exit(1) from e
            raise
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
        stream = open(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)  # noqa: SIM115 - closed below
        _lead_to_stderr()
        try:
            yield stream
        finally:
            os.dup2(stream.fileno(), 1)
            with suppress(BrokenPipeError):
                stream.close()


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
