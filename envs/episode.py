"""What Moonmill knows of an environment and its episode, kept apart from the author's attributes."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from moonmill.envs.episode_sandboxes import EpisodeSandboxes
from moonmill.envs.faults import FaultLog
from moonmill.envs.marks import Mark
from moonmill.envs.threads import BY_HAND, Home
from moonmill.envs.tools import Tool
from moonmill.types import StopReason, Task


class Definition(Struct, frozen=True):
    """What an environment's class defines."""

    tools: Mapping[str, Tool] = {}
    marks: tuple[Mark, ...] = ()


class Episode:
    """How far an instance has come. At first: just made.

    Args:
        args: what the constructor was given, to make the instance anew.
        kwargs: the same, by name.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.arguments = args, kwargs
        self.home: Home = BY_HAND
        """Where the author's code runs."""
        self.own_tasks: dict[str, Iterator[Task]] = {}
        """By split, for a reset that names no task."""
        self.is_set_up = False
        self.has_begun = False
        self.is_over = True
        self.is_closed = False
        self.turns = 0
        self.in_turn = False
        self.turn_reward = 0.0
        self.is_finished = False
        """A tool, or `step`, has ended the episode with `finish`."""
        self.is_answered = False
        """The turn called no tool, and `react` took it for the answer."""
        self.faults = FaultLog()
        self.sandboxes = EpisodeSandboxes()

    def anew(self) -> "Episode":
        """The state of a new instance in the same place."""
        args, kwargs = self.arguments
        episode = Episode(args, kwargs)
        episode.home, episode.own_tasks, episode.sandboxes = self.home, self.own_tasks, self.sandboxes
        episode.sandboxes.begin_anew()
        return episode

    @property
    def ending(self) -> StopReason:
        """Why the episode is over, where no limit has ended it."""
        return StopReason.ANSWERED if self.is_answered and not self.is_finished else StopReason.STOPPED

    def take_reward(self) -> float:
        """What has been added in this turn and nobody has taken yet."""
        reward, self.turn_reward = self.turn_reward, 0.0
        return reward
