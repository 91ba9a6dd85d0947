"""Seconds of generating, learning, and both at once."""

from moonmill.trainer.meter import Meter, Spans


def test_overlap_is_counted_once_however_many_episodes_run() -> None:
    now = 0.0
    meter = Meter(lambda: now)
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
