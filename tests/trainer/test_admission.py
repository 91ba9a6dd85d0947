"""AReaL's capacity: how far generation may run ahead."""

from moonmill.trainer.admission import capacity


def test_at_most_max_concurrent_episodes_run() -> None:
    assert room(max_concurrent=8, running=5) == 3


def test_generation_runs_ahead_by_the_staleness_bound_and_no_further() -> None:
    # Version 0 is published: batches 0, 1 and 2 of 4 may be filled under max_staleness 2.
    assert room(max_concurrent=100, max_staleness=2, batch=4) == 12
    assert room(max_concurrent=100, max_staleness=2, batch=4, accepted=7, running=5) == 0


def test_staleness_zero_fills_one_batch_per_published_step() -> None:
    assert room(max_concurrent=100, max_staleness=0, batch=4, published=3, accepted=12) == 4


def test_a_dropped_rollout_frees_its_place() -> None:
    assert room(max_staleness=0, batch=4, accepted=4) == 0
    assert room(max_staleness=0, batch=4, accepted=3) == 1


def test_it_is_never_negative() -> None:
    assert room(max_concurrent=2, running=5) == 0


def room(
    *,
    max_concurrent: int = 64,
    max_staleness: int = 4,
    batch: int = 16,
    published: int = 0,
    accepted: int = 0,
    running: int = 0,
) -> int:
    return capacity(
        max_concurrent=max_concurrent,
        max_staleness=max_staleness,
        batch=batch,
        published=published,
        accepted=accepted,
        running=running,
    )
