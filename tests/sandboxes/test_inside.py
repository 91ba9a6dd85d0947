"""Parts of the supervisor that cannot be hurried into their rare cases from outside."""

import os
import signal
import subprocess

import pytest

from moonmill.sandboxes.inside import processes


def test_what_slips_away_while_it_is_looked_for_is_found_once_all_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts another and ends, again and again: a list that takes time to make has neither of them."""
    with subprocess.Popen(["sleep", "60"]) as slippery:
        sent: list[int] = []
        monkeypatch.setattr(processes, "signal_all_others", sent.append)

        def victims() -> set[int]:
            seen = signal.SIGSTOP in sent and slippery.poll() is None
            return {slippery.pid} if seen else set()

        assert processes.kill_all(victims)
        assert slippery.wait(5) == -signal.SIGKILL
    assert sent[-1] == signal.SIGCONT
    assert sent.count(signal.SIGSTOP) == 2


def test_all_others_are_those_of_a_namespace_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    processes.signal_all_others(signal.SIGSTOP)
    assert sent == []
    monkeypatch.setattr(os, "getpid", lambda: 1)
    processes.signal_all_others(signal.SIGSTOP)
    assert sent == [(-1, signal.SIGSTOP)]
