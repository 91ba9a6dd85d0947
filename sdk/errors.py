"""Every error a user is meant to read.

A message says what was wrong, where, the value that was seen, and what to do. The command line prints these without a
traceback; anything else that escapes is a bug of ours and is reported as one.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class MoonmillError(Exception):
    """Base of all of them. `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigError(MoonmillError):
    """A configuration or command-line value that cannot be used."""

    exit_code = 2


class MissingExtraError(ConfigError):
    """A package that is not installed with Moonmill alone.

    Args:
        what: what needs it.
        extra: which of Moonmill's extras brings it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}: a package for it is not installed: pip install 'moonmill[{extra}]'")


class RegistryError(ConfigError):
    """An environment id that nothing is registered under, or that cannot be imported."""


class ToolDefinitionError(TypeError, MoonmillError):
    """A tool, reward, metric or stop method whose signature cannot be expressed. Raised when the class is defined.

    Args:
        problem: what is wrong.
        place: `file:line` of the method, where it is known.
    """

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{problem} ({place})" if place else problem)
        self.place = place


@contextmanager
def defining(method: object) -> Iterator[None]:
    """A definition error inside gets the place of `method`."""
    try:
        yield
    except ToolDefinitionError as e:
        code = getattr(method, "__code__", None)
        if code is None or e.place:
            raise
        raise ToolDefinitionError(str(e), f"{code.co_filename}:{code.co_firstlineno}") from e


class EpisodeOverError(MoonmillError):
    """`step` was called on an episode that has ended, or before `reset`."""


class EnvCodeError(MoonmillError):
    """An environment's own code raised outside a tool, or returned what it must not."""


class RewardError(EnvCodeError):
    """A reward or metric that is not a finite number, or is out of the environment's bounds."""


class EngineError(MoonmillError):
    """The engine could not be started, reached, or would not answer."""


class PromptTooLongError(MoonmillError):
    """A prompt leaves no room for an action in the model's context."""


class ContextFullError(MoonmillError):
    """A conversation has used up the model's context."""


class RenderError(MoonmillError):
    """Messages cannot become tokens, or cannot be appended without changing tokens that were sampled."""


class WorkerDiedError(MoonmillError):
    """A process of ours ended that should have gone on."""


class WorkerTimeoutError(MoonmillError):
    """What was called in a process of ours did not come back in its time."""


class RunError(MoonmillError):
    """A training run cannot go on."""


class RunDirectoryError(MoonmillError):
    """A run directory that cannot be read, written or resumed."""

    exit_code = 2
