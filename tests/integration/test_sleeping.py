"""A run whose engine sleeps while the learner computes trains as one whose engine does not, whatever is killed."""

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from moonmill.jsonl import read_jsonl
from moonmill.types import Rollout
from tests.integration.conftest import (
    DEADLINE,
    Cli,
    assert_accounted_for,
    events,
    start,
    steps,
    wait_for_steps,
    wait_until,
    write_config,
)

METRICS = ("policy_loss", "grad_norm", "value_loss", "critic_grad_norm")
SYNC = "async.mode=sync"
# One by one, since the last bits of what is computed together depend on who else is there.
ENGINE = "max_batch: 16, batch_invariant: true, start_timeout: 240"


def outcome(run: Path) -> tuple[list[object], dict[str, object]]:
    """What was trained, and what was sampled, to the bit."""
    trained = [(s.step, s.version, s.consumed, [s.metrics.get(name) for name in METRICS]) for s in steps(run)]
    sampled = {
        r.id: (r.reward, [(a.tokens, a.logprobs, a.versions) for a in r.actions])
        for r in read_jsonl(run / "rollouts.jsonl", Rollout)
    }
    return [*trained], {**sampled}


@pytest.fixture(scope="module")
def awake(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[object], dict[str, object]]:
    """What comes of a run that does not sleep."""
    folder = tmp_path_factory.mktemp("awake")
    with start(write_config(folder, ENGINE), folder, "--set", SYNC, "--set", "train.steps=6") as trainer:
        assert trainer.wait(2 * DEADLINE) == 0, trainer.communicate()
    return outcome(folder / "run")


def test_a_run_that_sleeps_is_the_same_to_the_bit_also_where_all_is_killed_asleep(
    awake: tuple[list[object], dict[str, object]], moonmill: Cli, tmp_path: Path
) -> None:
    config, run = write_config(tmp_path, f"{ENGINE}, sleep_while_learning: true"), tmp_path / "run"
    words = ("--set", SYNC, "--set", "train.steps=6")

    with start(config, tmp_path, *words) as trainer:
        for kind, step in (("learner", 1), ("engine", 3)):
            wait_for_steps(run, step, trainer, 2 * DEADLINE)
            asleep(run)
            os.kill(int(str(newest(run, kind)["pid"])), signal.SIGKILL)
            wait_until(lambda kind=kind: bool(events(run, f"{kind}_restarted")), f"{kind} to be back", trainer)  # type: ignore[misc]
        wait_for_steps(run, 5, trainer)
        asleep(run)
        trainer.send_signal(signal.SIGINT)
        assert trainer.wait(DEADLINE) == 1, trainer.communicate()
    assert events(run, "stopped")
    resumed = moonmill("train", config, *words, "--resume", timeout=2 * DEADLINE)
    assert resumed.returncode == 0, resumed.stderr
    assert_accounted_for(run)
    assert not any(r.status == "failed" for r in read_jsonl(run / "rollouts.jsonl", Rollout))
    assert outcome(run) == awake
    # For each step, and twice for the learner's start: it computes as it comes back.
    slept = events(run, "engine_slept")
    assert len(slept) == len(steps(run)) + 2
    assert all(float(str(e.data["seconds"])) > 0 for e in slept)


def newest(run: Path, kind: str) -> dict[str, object]:
    return [*events(run, f"{kind}_started"), *events(run, f"{kind}_restarted")][-1].data


def asleep(run: Path) -> None:
    """Wait until the engine is asleep."""
    end = time.monotonic() + DEADLINE
    with httpx.Client(base_url=str(newest(run, "engine")["url"])) as http:
        while not http.get("/is_sleeping").json()["is_sleeping"]:
            assert time.monotonic() < end
            time.sleep(0.005)
