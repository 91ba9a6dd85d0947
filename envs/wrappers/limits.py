"""Other limits than an environment's own."""

from collections.abc import Mapping
from typing import Any

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.lifecycle import Observation
from moonmill.envs.limits import limits_of
from moonmill.envs.wrapper import Wrapper, innermost
from moonmill.errors import ConfigError


class Limits(Wrapper):
    """Sets limits; one that is None stays the environment's own.

    Args:
        env: what is wrapped.
        turns: in place of `max_turns`.
        tokens: in place of `max_tokens`.
        seconds: in place of `max_seconds`.

    Raises:
        ConfigError: the environment works a limit out itself, so that it cannot be set.
        EnvCodeError: a value is none that the limit can have.
    """

    def __init__(
        self,
        env: MultiTurnEnv,
        *,
        turns: int | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> None:
        super().__init__(env)
        limits = {"max_turns": turns, "max_tokens": tokens, "max_seconds": seconds}
        self._limits = {name: value for name, value in limits.items() if value is not None}
        self._apply()
        limits_of(self)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Any]:
        begun = super().reset(seed=seed, options=options)
        self._apply()  # The environment may have set its own anew.
        return begun

    def _apply(self) -> None:
        env = innermost(self)
        for name, value in self._limits.items():
            try:
                setattr(env, name, value)
            except AttributeError as e:
                raise ConfigError(f"{type(env).__name__}.{name} is a property: limits cannot set it") from e
