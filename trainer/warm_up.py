"""How long the critic is trained alone: for a number of steps, or until it stops getting better.

What always holds: it is decided by what `steps.jsonl` tells of the steps so far (`explained_variance` and
`return_std`) and nothing else, so that a run that is done again decides the same; once over, it stays over.
"""

from collections.abc import Sequence
from typing import Any

from moonmill.algorithm_config import CriticConfig, PretrainConfig
from moonmill.errors import ConfigError
from moonmill.trainer.explained import Variance, explained_variance


class WarmUp:
    """Follows a critic from its first step.

    Args:
        config: the critic's.
    """

    def __init__(self, config: CriticConfig) -> None:
        self._config = config
        self._steps = 0
        self._seen: list[Variance] = []
        self.over = most_steps(config) == 0
        """The policy is trained too."""

    def see(self, variance: Variance | None) -> None:
        """One more step that trained the critic alone; None where nothing could be told of it."""
        self._steps += 1
        if variance is not None and variance.all > 0:
            self._seen.append(variance)
        pretrain = self._config.pretrain
        enough = self._steps >= self._config.warmup_steps
        done = pretrain is None or self._steps >= pretrain.max_steps or has_stopped_rising(self._seen, pretrain)
        self.over = enough and done

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "seen": [tuple(v) for v in self._seen], "over": self.over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self.over = state["steps"], state["over"]
        self._seen = [Variance(*v) for v in state["seen"]]


def has_stopped_rising(steps: Sequence[Variance], config: PretrainConfig) -> bool:
    """Whether the explained variance of the last `window` steps has not risen by `min_rise` for `patience` steps."""
    best, since = float("-inf"), 0
    for end in range(config.window, len(steps) + 1):
        now = explained_variance(steps[end - config.window : end])
        best, since = (now, 0) if now > best + config.min_rise else (best, since + 1)
    return since >= config.patience


def most_steps(config: CriticConfig | None) -> int:
    """Steps that train the critic alone, at most."""
    if config is None:
        return 0
    return max(config.warmup_steps, config.pretrain.max_steps if config.pretrain else 0)


def check_warm_up(config: CriticConfig) -> None:
    """Refuse bounds that cannot both hold. Raises `ConfigError`."""
    if config.pretrain and config.pretrain.max_steps < config.warmup_steps:
        raise ConfigError(
            f"algorithm.critic.pretrain.max_steps: {config.pretrain.max_steps} is less than the least number of steps, "
            f"algorithm.critic.warmup_steps ({config.warmup_steps}): raise the one or lower the other"
        )
