"""Seconds of generating, learning, both at once, and of waiting, by cause."""

from moonmill.trainer.meter import Meter, Spans, Waits
from moonmill.types import Timings


def test_overlap_is_counted_once_however_many_episodes_run() -> None:
    now = 0.0
    meter = Meter(clock=lambda: now)
    with meter.generating():
        now = 1.0
        with meter.generating(), meter.learning():
            now = 4.0
        now = 5.0
    with meter.learning():
        now = 7.0
    now = 8.0
    assert meter.spans() == Spans(wall=8.0, generating=5.0, learning=5.0, both=3.0)


def test_spans_since_an_earlier_look() -> None:
    assert Spans(9.0, 7.0, 5.0, 3.0).since(Spans(8.0, 5.0, 2.0, 1.0)) == Spans(1.0, 2.0, 3.0, 2.0)


def test_free_slots_wait_for_one_cause_at_a_time_in_seconds_of_an_average_slot() -> None:
    now = 0.0
    meter = Meter(4, clock=lambda: now)
    meter.leave_free(0, "learner")
    now = 10.0
    meter.leave_free(2, "stragglers")  # Half of them, for 3 s
    now = 13.0
    meter.leave_free(4, "learner")
    now = 15.0
    meter.leave_free(4, "handover")
    now = 16.0
    meter.leave_free(1, "handover")
    now = 20.0
    assert meter.waits() == Waits(stragglers=1.5, learner=2.0, handover=2.0)


def test_the_learner_waits_in_seconds_and_episodes_in_those_of_an_average_slot() -> None:
    now = 0.0
    meter = Meter(2, clock=lambda: now)
    with meter.waiting_for_rollouts():
        now = 3.0
    meter.played(Timings(environment=4.0, scoring=1.0, sandbox=3.0))
    before = meter.waits(queued=6.0)
    assert before == Waits(rollouts=3.0, queue=3.0, tools=2.5, sandbox=1.5)
    meter.played(Timings(environment=2.0))
    assert meter.waits(queued=6.0).since(before) == Waits(tools=1.0)
