"""How many more episodes may start: AReaL's capacity (arXiv 2505.24298), a pure function.

Generation may run ahead of learning by so much that nothing it makes is too stale when it is consumed. Batch number `k`
(from 0) is consumed by learner step `k`; all that is admitted while `published` steps are behind the weights in use
belongs at the latest to batch `published + max_staleness`. A dropped rollout frees its place.
"""


def capacity(
    *, max_concurrent: int, max_staleness: int, batch: int, published: int, accepted: int, running: int
) -> int:
    """Episodes that may start now, at least 0.

    Args:
        max_concurrent: most episodes in flight.
        max_staleness: most versions a consumed rollout may be behind.
        batch: rollouts a learner step consumes.
        published: learner steps behind the weights that new episodes are sampled with.
        accepted: rollouts consumed so far or finished and kept.
        running: episodes in flight.
    """
    ahead = (max_staleness + published + 1) * batch - (accepted + running)
    return max(0, min(max_concurrent - running, ahead))
