"""`Wrapper`: what changes something about an environment, and leaves the rest as it is.

A wrapper stands outside: what it calls is the wrapped environment as the episode runner would see it, so that limits,
`@stop` methods and the order of an episode hold inside, whatever a wrapper does. It is one episode, like what it wraps.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.lifecycle import Observation, Step, next_task
from moonmill.errors import ConfigError
from moonmill.types import Message, Rollout, Task

if TYPE_CHECKING:
    _Base = MultiTurnEnv
else:  # What the class has would stand in front of what the wrapped environment has.
    _Base = object

_SET_INSIDE = ("finish_reason", "taskset_seed")
"""What is set on an environment from outside."""


class Wrapper(_Base):
    """An environment around another. As it stands it changes nothing: override what is to be different.

    What a wrapper does not have is the wrapped environment's. State of its own that an episode leaves behind is to be
    put back in `reset`.

    Args:
        env: what is wrapped.

    Raises:
        ConfigError: it is no `MultiTurnEnv`.
    """

    def __init__(self, env: MultiTurnEnv) -> None:
        if not isinstance(env, MultiTurnEnv):
            raise ConfigError(f"{type(self).__name__} wraps a MultiTurnEnv, and {env!r:.200} is none")
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # asked before it is there, as copying does
            raise AttributeError(name)
        return getattr(self.env, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SET_INSIDE:
            setattr(self.env, name, value)
        else:
            super().__setattr__(name, value)

    def tasks(self, split: str) -> Iterable[Task]:
        return self.env.tasks(split)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Any]:
        """Begin an episode. A task that is not given comes from the wrapper's own `tasks`."""
        chosen = dict(options or {})
        if chosen.get("task") is None:
            chosen["task"] = next_task(self, str(chosen.get("split", "train")))
        observation, info = self.env.reset(seed=seed, options=chosen)
        return observation, info

    def step(self, action: Message | str) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, info

    def scored(self, rollout: Rollout) -> Rollout:
        """The finished episode, as the wrapped environment has scored it; where that has failed, `reward` is None."""
        return rollout


MultiTurnEnv.register(Wrapper)


def innermost(env: MultiTurnEnv) -> MultiTurnEnv:
    """The environment inside all wrappers."""
    while isinstance(env, Wrapper):
        env = env.env
    return env
