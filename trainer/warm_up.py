"""How long the critic is trained alone: for a number of steps, or until it stops getting better.

What always holds: it is decided by what `steps.jsonl` tells of the steps so far (`explained_variance` and
`return_std`) and nothing else, so that a run that is done again decides the same; once over, it stays over.
"""

from collections.abc import Sequence
from typing import Any

from moonmill.algorithm_config import CriticConfig, PretrainConfig
from moonmill.errors import ConfigError
from moonmill.trainer.explained import Variance, explained_variance

_LITTLE = 0.05
"""Explained variance of a critic that knows hardly more than the mean."""


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


def how_it_ended(config: CriticConfig, step: int, explained: float | None) -> tuple[str, str]:
    """Why the critic is trained alone no longer, and a warning where it has learned too little; both may be empty.

    Args:
        config: the critic's.
        step: learner steps that trained it alone.
        explained: its explained variance, smoothed; None where nothing could be told of it.
    """
    pretrain = config.pretrain
    if pretrain is None:
        return "", ""
    why = f"its explained variance has not risen by {pretrain.min_rise:g} for {pretrain.patience} steps"
    if step >= pretrain.max_steps:
        why = f"that is the most it may take (pretrain.max_steps: {pretrain.max_steps})"
    known = "unknown" if explained is None else f"{explained:.3f}"
    told = f"the critic's pre-training ended after {step} steps: {why}; explained variance {known}"
    if explained is not None and explained >= _LITTLE:
        return told, ""
    return told, (
        f"the critic has learned next to nothing in {step} steps: its explained variance is {known}, below "
        f"{_LITTLE:g}, so its values tell no more than the mean would. Raise algorithm.critic.lr, or "
        "algorithm.critic.pretrain.patience where it is only slow; see whether rewards vary at all"
    )


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
