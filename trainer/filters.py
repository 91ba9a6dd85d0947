"""Dynamic filters: which finished rollouts are dropped although they could be trained on. A state machine without I/O.

What always holds: what becomes of a rollout depends on nothing but the configuration, the rollout and its group, and
the rollouts that finished before it, in the order of the log. So a run that is killed and resumed judges as before.

A task's success rate is taken over the results before the rollout that is judged. Were its own among them, successes of
easy tasks would be dropped sooner than failures, and the gradient would be biased.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

from moonmill.config import FiltersConfig
from moonmill.errors import ConfigError
from moonmill.types import Rollout, Status, StopReason

PREFIX = "filter: "
_OVERLONG = frozenset({StopReason.LENGTH, StopReason.MAX_TOKENS, StopReason.MAX_TURNS})


class Filters:
    """Judges rollouts, one after another, as they finish.

    Args:
        config: which filters there are.
        success: a reward of at least this is a success.
    """

    def __init__(self, config: FiltersConfig, success: float = 1.0) -> None:
        self._config = config
        self._success = success
        last = config.success_rate.last if config.success_rate else 0
        self._results: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=last))

    @property
    def remembers(self) -> bool:
        """Whether earlier rollouts count, so that all of them have to be seen again after a restart."""
        return self._config.success_rate is not None

    def see(self, rollout: Rollout) -> str | None:
        """Why a rollout that could be trained on is dropped, None where it is not. Of each, to be asked once."""
        by_rate = self._by_success_rate(rollout)
        if self._config.overlong and rollout.status is Status.TRUNCATED and rollout.stop_reason in _OVERLONG:
            return f"{PREFIX}overlong"
        return by_rate

    def see_group(self, members: Sequence[Rollout]) -> str | None:
        """Why a group is dropped, of which `members` can be trained on; None where it is not."""
        alike = len(members) > 1 and len({rollout.reward for rollout in members}) == 1
        return f"{PREFIX}zero_std" if self._config.zero_std and alike else None

    def _by_success_rate(self, rollout: Rollout) -> str | None:
        config = self._config.success_rate
        if config is None or rollout.judged is None:
            return None
        results = self._results[rollout.task.id]
        rate = sum(results) / config.last if len(results) == config.last else None
        results.append(rollout.judged >= self._success)
        if rate is None or config.min <= rate <= config.max:
            return None
        return f"{PREFIX}{'too_hard' if rate < config.min else 'too_easy'}"


def check_filters(config: FiltersConfig, group_size: int) -> None:
    """Raise `ConfigError` for a filter that could drop nothing, or that this mode has no use for."""
    if config.zero_std and group_size == 1:
        raise ConfigError(
            "async.filters.zero_std: drops groups of rollouts whose rewards are alike, and this algorithm trains on "
            "single rollouts: leave it out; success_rate drops tasks that are always solved, or never"
        )
    rate = config.success_rate
    if rate is None:
        return
    if group_size > 1:
        raise ConfigError(
            "async.filters.success_rate: is for single rollouts, and this algorithm compares groups: take zero_std, "
            "which drops groups that all solve their task, or none"
        )
    if rate.min > rate.max:
        raise ConfigError(
            f"async.filters.success_rate: min {rate.min:g} is above max {rate.max:g}, so every task would be dropped"
        )
    if rate.min == 0 and rate.max == 1:
        raise ConfigError(
            "async.filters.success_rate: min 0 and max 1 drop nothing: give a min such as 0.1, or a max such as 0.9"
        )
