"""Whose fault an exception is, and where it comes from: for errors about code that is not ours."""

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from moonmill.errors import EnvCodeError, MoonmillError

_LONGEST = 3000
"""Characters of a text that is told whole."""
_KEPT = 1000
"""Of the beginning and of the end of a longer one. Well below half the longest: what is left is not cut a second time
where it has become part of another text."""


def place_of(error: BaseException) -> str:
    """`file:line` of the line to look at: the deepest one in the author's file, and where that called into."""
    return _place([*traceback.walk_tb(error.__traceback__)], "raised in")


def place_on(frame: FrameType) -> str:
    """The same of what an event loop is doing, from the frame its thread is in."""
    frames = [*traceback.walk_stack(frame)]
    runs = next((i for i, (f, _) in enumerate(frames) if f.f_globals.get("__name__") == "asyncio.events"), len(frames))
    return _place(frames[:runs][::-1], "in")


def _place(stack: Sequence[tuple[FrameType, int]], deeper: str) -> str:
    frames = [(frame, f"{frame.f_code.co_filename}:{line}") for frame, line in stack]
    if not frames:
        return "unknown place"
    deepest = frames[-1][1]
    theirs = [(frame.f_code.co_filename, place) for frame, place in frames if not _is_ours(frame)]
    if not theirs:
        return deepest
    line = [place for file, place in theirs if file == theirs[0][0]][-1]
    return line if line == deepest or _is_ours(frames[-1][0]) else f"{line}, {deeper} {deepest}"


def text_of(error: BaseException) -> str:
    """What `error` says, in UTF-8 and as a plain `str`: an author's class may fail at that."""
    try:
        text = str.__str__(str(error))
    except BaseException as e:
        if is_interruption(e):
            raise
        return "(its text cannot be had)"
    return text.encode("utf-8", "replace").decode()


def error_of(error: BaseException) -> str:
    """What a rollout's `error` says of what has ended it: logs and messages take it over, so it is not longer."""
    return _shortened(text_of(error))


def own_error(error: BaseException) -> MoonmillError | None:
    """The error of ours that `error` is, or that it holds if it is a group."""
    if isinstance(error, MoonmillError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := own_error(inner))), None)
    return None


class LeftBehind(BaseException):
    """Nobody waits any more for the call this is raised in. No `Exception`: a tool must not take it for its own."""


def is_interruption(error: BaseException) -> bool:
    """Whether `error` is meant to end what is going on: Ctrl-C, or a cancellation that really was asked for.

    Author's code can raise or let through a cancellation of its own making, which is as much its fault as any
    exception: passed on, it would end the task of the episode, and with it the run, as if somebody had wanted that.
    """
    if isinstance(error, KeyboardInterrupt):  # Ctrl-C is raised in the main thread alone.
        return threading.current_thread() is threading.main_thread()
    if isinstance(error, LeftBehind):
        return True
    if isinstance(error, Exception):
        return False
    import asyncio

    import anyio

    try:
        cancelled = anyio.get_cancelled_exc_class()
    except RuntimeError:  # No event loop here: nobody can have cancelled this.
        return False
    if not isinstance(error, cancelled):
        return False
    task = asyncio.current_task() if issubclass(cancelled, asyncio.CancelledError) else None
    return bool(task and task.cancelling()) or anyio.get_current_task().has_pending_cancellation()


@contextmanager
def blaming(env: str, where: str) -> Iterator[None]:
    """What is raised inside comes out as `EnvCodeError`, with its place. Errors of ours pass through."""
    with told_as(lambda said: EnvCodeError(f"{env}: {where} raised {said}")):
        yield


@contextmanager
def told_as(ours_of: Callable[[str], MoonmillError]) -> Iterator[None]:
    """What is raised inside comes out as an error of ours, made of what `said_of` says. Ours pass through."""
    try:
        yield
    except BaseException as e:
        ours = own_error(e)
        if ours is e or is_interruption(e):
            raise
        raise ours or ours_of(said_of(e)) from e


def said_of(error: BaseException) -> str:
    """Class, text and place of an error that is none of ours."""
    return f"{type(error).__name__}: {_shortened(text_of(error))}".removesuffix(": ") + f" ({place_of(error)})"


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_KEPT]} … [{len(text) - 2 * _KEPT:,} characters cut] … {text[-_KEPT:]}"


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("importlib", "moonmill") and not name.startswith("moonmill.envs.library.")
