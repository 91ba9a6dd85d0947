"""A real run with a learning rate that is far too high: it is stopped, or goes back and gets well."""

from pathlib import Path

from moonmill.config_io import load_config
from tests.integration.conftest import Cli, events, start, steps, wait_until
from tests.integration.crash_checks import check_logs, check_weights

TOO_HIGH = [
    *("--set", "learner={batch_rollouts: 48, lr: 3.0e-3}"),
    *("--set", "async={max_staleness: 4, max_concurrent: 48}"),
    *("--set", "train.checkpoint_every=4"),
]


def test_a_collapse_stops_the_run_before_the_reward_is_gone(attached: Path, tmp_path: Path, moonmill: Cli) -> None:
    done = moonmill("train", attached, *TOO_HIGH, "--set", "train.steps=40", "--set", "alarms.on_alarm=stop")
    assert done.returncode == 1
    assert "(alarms.on_alarm: stop)" in done.stderr.splitlines()[-1]
    run = tmp_path / "run"
    made = steps(run)
    alarm = events(run, "alarm")[0]
    assert alarm.data["step"] == made[-1].step
    assert (run / "checkpoints" / f"step-{made[-1].step:06d}").is_dir()
    assert sum(s.reward or 0.0 for s in made[-3:]) / 3 > 0.5 * sum(s.reward or 0.0 for s in made[:3]) / 3


def test_a_run_that_fell_back_is_killed_and_resumed_and_every_bit_can_be_made_again(
    attached: Path, tmp_path: Path, moonmill: Cli
) -> None:
    sets = [*TOO_HIGH, "--set", "train.steps=22", "--set", "alarms={on_alarm: fall_back, lr_factor: 0.01}"]
    run = tmp_path / "run"
    with start(attached, tmp_path, *sets) as trainer:
        wait_until(lambda: bool(events(run, "fell_back")), "the run to fall back", trainer)
        fell = events(run, "fell_back")[0].data
        wait_until(lambda: (steps(run)[-1].step or 0) > fell["step"], "a step after it", trainer)
        trainer.kill()
    resumed = moonmill("train", attached, *sets, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert len(events(run, "fell_back")) == 1
    config = load_config(attached, sets[1::2])
    check_logs(run, config, 24)
    check_weights(run, config)
    # The weights of the version it made are those of the step it went back to.
    made = {s.step: s for s in steps(run)}
    assert made[fell["step"]].rolled_back_to == fell["to"] <= 4
    assert min(min(s.staleness) for s in steps(run) if s.consumed) >= 0
    assert {d.reason for s in steps(run) for d in s.dropped} >= {"rolled_back"}
    # With a hundredth of the learning rate it stays well.
    assert sum(s.reward or 0.0 for s in steps(run)[-3:]) > 0.5 * sum(s.reward or 0.0 for s in steps(run)[:3])
