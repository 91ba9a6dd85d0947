"""The promise of the demo, in a shorter run: a policy that is really sampled and really trained really gets better."""

from pathlib import Path

from tests.integration.conftest import ROOT, Cli, as_json, assert_accounted_for

STEPS = 60
SAMPLES = 300
"""At each temperature. The difference of two successes has a standard error of 4 points then, and is about 25."""
GAIN = 0.15


def test_success_on_held_out_tasks_rises_by_fifteen_points(moonmill: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    demo = ROOT / "examples" / "calculator" / "demo.yaml"
    sets = [f"run_dir={run}", f"train.steps={STEPS}", f"eval.tasks={SAMPLES}"]
    result = moonmill("train", demo, "--json", *(word for key in sets for word in ("--set", key)), timeout=500)
    assert result.returncode == 0, result.stderr
    summary = as_json(result)
    assert isinstance(summary, dict)
    success = {(e["label"], e["temperature"]): e["success"] for e in summary["evals"]}
    print({key: round(value, 3) for key, value in success.items()}, f"{summary['wall_seconds']:.0f} s")
    assert 0.25 <= success["before", 1.0] <= 0.45
    assert success["after", 1.0] >= success["before", 1.0] + GAIN
    assert success["after", 0.0] > success["before", 0.0]
    assert_accounted_for(run)
