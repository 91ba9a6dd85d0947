"""What this machine's processor does: measured in a moment, for the speeds of what computes on it.

The clock is that of this process' own time on it, so that what else runs there counts little.
"""

import os
from collections.abc import Callable
from functools import cache
from time import process_time

from moonmill.trainer.planning.gpus import Rates

_SIDE = 384
"""Of square matrices: 113 million operations, a few milliseconds of one thread."""
_NUMBERS = 1 << 24
"""That are copied: 64 MiB of float32, more than caches hold."""
_TIMES, _SECONDS = 5, 0.1
"""Each is done so often, or until it has taken so long: the fastest counts."""


@cache
def measured(threads: int, dtype: str) -> Rates:
    """Multiply matrices and copy memory for a moment; once in a process, so that a plan keeps to its figures.

    Args:
        threads: that compute.
        dtype: what matrices are multiplied in.
    """
    import torch

    before, at_once = torch.get_num_threads(), min(threads, len(os.sched_getaffinity(0)))
    torch.set_num_threads(threads)
    try:
        matrix = torch.ones(_SIDE, _SIDE, dtype=getattr(torch, dtype))
        product, numbers = torch.empty_like(matrix), torch.ones(_NUMBERS)
        copied = torch.empty_like(numbers)
        operations = at_once * 2 * _SIDE**3 / _fastest(lambda: torch.mm(matrix, matrix, out=product))
        read_and_written = at_once * 2 * numbers.nbytes / _fastest(lambda: copied.copy_(numbers))
    finally:
        torch.set_num_threads(before)
    return Rates(
        read_and_written, operations, f"this processor, measured here: {threads} thread{'s' * (threads > 1)}, {dtype}"
    )


def _fastest(act: Callable[[], object]) -> float:
    """Seconds of all threads that it takes; the first time, when memory is had and code is found, does not count."""
    act()
    times: list[float] = []
    while len(times) < _TIMES and sum(times) < _SECONDS:
        begun = process_time()
        act()
        times.append(process_time() - begun)
    return min(times)
