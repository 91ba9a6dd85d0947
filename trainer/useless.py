"""Notices when nothing comes any more that could be trained on."""

from moonmill.config import Config
from moonmill.errors import RunError
from moonmill.trainer.buffer import Buffer
from moonmill.trainer.filters import PREFIX

_FILTERED_BATCHES = 16
"""Failures are few where all is well; what a filter drops may well be most of what there is."""


def refuse_useless(buffer: Buffer, config: Config, last_error: str | None) -> None:
    """End a run in which nothing comes that can be trained on.

    Args:
        buffer: knows what has been given up since the last rollout of use.
        config: the run's.
        last_error: of the last rollout that had one.

    Raises:
        RunError: it has been too many.
    """
    useless, size, bound = buffer.useless, buffer.group_size, config.train.max_failures
    filtered = sum(count for reason, count in useless.items() if reason.startswith(PREFIX))
    most = max(bound, _FILTERED_BATCHES * config.learner.batch_rollouts)
    if useless.total() - filtered < bound and useless.total() < most:
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in useless.most_common())
    need = f" A group needs {buffer.min_valid} of its {size} members (min_valid)." if size > 1 else ""
    loosen = (
        " What is dropped as a filter's is too easy or too hard to learn from, or cut off: see `moonmill inspect "
        "--rollouts`, change the tasks or limits, or loosen async.filters."
    ) * bool(filtered)
    raise RunError(
        f"the last {useless.total()} rollouts were of no use (train.max_failures), so there is nothing to train "
        f"on: {counts}.{need}{loosen}{f' The last error: {last_error}' if last_error else ''}"
    )
