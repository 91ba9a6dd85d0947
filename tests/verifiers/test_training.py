"""Real runs on environments of verifiers, of both APIs; in one the process that plays the episodes is killed."""

from pathlib import Path

from moonmill.jsonl import read_jsonl
from moonmill.types import Rollout, Status
from tests.integration.conftest import Cli, assert_accounted_for, start, steps, wait_until, write_config
from tests.integration.processes import children, kill


def test_a_run_trains_and_outlives_the_process_that_plays_its_episodes(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    changes = ("env.id=verifiers:moonmill-sums", "env.args.taskset.size=1000", "train.steps=4", "eval.tasks=0")
    trainer = start(config, tmp_path, *(part for change in changes for part in ("--set", change)))
    wait_until(lambda: len(steps(run)) >= 1, "a step", trainer)
    killed = children(trainer.pid, "moonmill_inside")
    assert len(killed) == 1
    kill(killed)
    out, _ = trainer.communicate(timeout=240)
    assert trainer.returncode == 0, out
    rollouts = list(read_jsonl(run / "rollouts.jsonl", Rollout))
    failed = [r for r in rollouts if r.status is Status.FAILED]
    assert failed
    assert {r.error for r in failed} == {"verifiers:moonmill-sums: the process that plays it was ended by signal 9"}
    assert all(r.reward is None for r in failed)
    good = [r for r in rollouts if r.reward is not None]
    assert {r.reward for r in good} == {0.0, 1.0}
    assert all(len(a.logprobs) == len(a.versions) == len(a.tokens) > 0 for r in good for a in r.actions)
    assert max(max(a.versions) for r in good for a in r.actions) >= 1
    assert_accounted_for(run)
    assert steps(run)[-1].version == 4


def test_a_run_trains_on_an_environment_of_the_first_api(tmp_path: Path, moonmill: Cli) -> None:
    changes = ("env.id=verifiers:moonmill-sums-v0", "env.args.size=1000", "train.steps=20", "eval.tasks=4")
    changes += ("learner.batch_rollouts=2", "learner.warmup_steps=0")
    done = moonmill("train", write_config(tmp_path), *(part for change in changes for part in ("--set", change)))
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert_accounted_for(run)
    assert steps(run)[-1].version == 20
    trained = [r for r in read_jsonl(run / "rollouts.jsonl", Rollout) if r.reward is not None]
    assert {r.reward for r in trained} == {0.0, 1.0}
    assert all("turn_0_reward" in r.metrics for r in trained)
