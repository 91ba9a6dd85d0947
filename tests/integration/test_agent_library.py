"""An agent of another library, in real runs: its own loop and tools, our engine and learner behind it."""

from pathlib import Path

from moonmill.jsonl import read_jsonl
from moonmill.types import Action, Observation, Rollout
from tests.integration.conftest import ROOT, Cli, steps

EXAMPLE = ROOT / "examples" / "agent-library"


def test_it_is_trained_for_a_few_steps_and_evaluated(attached: Path, moonmill: Cli, tmp_path: Path) -> None:
    env = f"env.id={EXAMPLE / 'calculator_agent.py'}:CalculatorAgent"
    small = ["train.steps=2", "learner.batch_rollouts=4", "algorithm.critic.warmup_steps=1", "eval.tasks=0"]
    done = moonmill("train", attached, *(word for item in (env, *small) for word in ("--set", item)))
    assert done.returncode == 0, done.stderr
    assert [record.version for record in steps(tmp_path / "run")] == [0, 1, 2]
    rollouts = list(read_jsonl(tmp_path / "run" / "rollouts.jsonl", Rollout))
    assert len(rollouts) >= 12
    for rollout in rollouts:
        assert rollout.error is None
        assert rollout.reward == rollout.rewards["correct"]
        assert [type(s) for s in rollout.segments] == [Observation, Action] * rollout.turns
        assert rollout.branches == ()
    assert any(m.role == "tool" for r in rollouts for m in r.messages)
