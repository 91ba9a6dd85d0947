"""A run whose episodes have sandboxes, some of which are lost."""

from pathlib import Path

import msgspec

from moonmill.jsonl import read_jsonl
from moonmill.types import Rollout, Status, StopReason
from tests.integration.conftest import Cli, as_json, assert_accounted_for, steps

BOXED = """
from moonmill import SandboxSpec, reward, tool
from moonmill.envs.library.calculator import Calculator

class Boxed(Calculator):
    sandbox = SandboxSpec()

    @tool
    def calculate(self, expression: str) -> str:
        "Work it out."
        lost = self.rng.random() < 0.2
        return self.sandbox.exec(["sh", "-c", "kill -9 $PPID" if lost else f"echo $(({expression}))"]).stdout.strip()

    @reward(weight=0)
    def fresh(self, rollout) -> float:
        with self.open_sandbox() as sandbox:
            return float(sandbox.exec(["true"]).returncode == 0)
"""


def test_a_run_trains_on_what_its_sandboxes_gave_and_drops_what_was_lost(
    moonmill: Cli, attached: Path, tmp_path: Path
) -> None:
    (tmp_path / "boxed.py").write_text(BOXED)
    sets = ("env={id: 'boxed.py:Boxed'}", "sandbox={provider: unsafe-subprocess, max_open: 6, prewarm: 1}")
    done = moonmill("train", attached, *(part for text in (*sets, "train.steps=2") for part in ("--set", text)))
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert_accounted_for(run)
    rollouts = {r.id: r for r in read_jsonl(run / "rollouts.jsonl", Rollout)}
    lost = {name for name, r in rollouts.items() if r.status is Status.FAILED}
    assert lost
    for name in lost:
        assert (rollouts[name].stop_reason, rollouts[name].reward) == (StopReason.SANDBOX_ERROR, None)
        assert "sandbox is gone" in (rollouts[name].error or "")
    for step in steps(run):
        assert not lost & set(step.consumed)
        assert all(rollouts[name].rewards["fresh"] == 1.0 for name in step.consumed)
        assert all(rollouts[name].timings.sandbox > 0 for name in step.consumed)
        assert step.sandboxes.in_use <= 2 * 6
    summary = msgspec.to_builtins(as_json(moonmill("inspect", run, "--json")))
    assert summary["failed"] == {"failed: sandbox_error": len(lost)}
    assert summary["sandboxes"]["created"] >= 2 * 2 * 8
    assert summary["sandbox_seconds"] > 0
