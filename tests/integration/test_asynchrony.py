"""Asynchrony as promised: versions change under many episodes with tools, sync is sync, filters survive a kill."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from moonmill.jsonl import read_jsonl
from moonmill.trainer.records import StepRecord
from moonmill.types import Action, Observation, Rollout
from tests.integration.conftest import (
    DEADLINE,
    Cli,
    as_json,
    assert_accounted_for,
    assert_load_is_spread,
    start,
    steps,
    wait_for_steps,
)

TALKER = """
import time
from moonmill import Message, MultiTurnEnv, Task, reward, tool

class Talker(MultiTurnEnv):
    "Four turns, whatever is said, and a tool that takes its time after each but the last."

    reward_bounds = (0.0, 1.0)
    turn = 0

    def tasks(self, split):
        rng = self.task_rng(split)
        while True:
            yield Task(f"{rng.randint(10, 999)}+{rng.randint(10, 999)}")

    @tool
    def calculate(self, expression: str) -> str:
        "Never mind."
        return "12"

    def step(self, action):
        answers, *_ = super().step(action)
        self.turn += 1
        if self.turn == 4:
            return answers, 0.0, True, False, {}
        time.sleep(self.rng.uniform(0.1, 0.6))
        return answers or (Message("user", "12"),), 0.0, False, False, {}

    @reward
    def any_number(self, rollout):
        return float(len(rollout.messages) % 2)
"""


def sets(*words: str) -> Iterator[str]:
    for word in words:
        yield from ("--set", word)


@pytest.mark.parametrize("on_new_version", ["interrupt", "finish"])
def test_versions_change_under_many_episodes_with_tools_on_two_engines(
    moonmill: Cli, config: Path, tmp_path: Path, on_new_version: str
) -> None:
    """With 72 episodes in flight, paced by a bound that admits no more than 104 ahead of the learner.

    With 80 ahead an episode that takes a tenth longer than the mean is too old, and one in twenty is dropped.
    """
    (tmp_path / "talker.py").write_text(TALKER)
    run = tmp_path / "run"
    result = moonmill(
        "train",
        config,
        *sets(
            f"env.id={tmp_path / 'talker.py'}:Talker",
            f"async={{max_staleness: 12, max_concurrent: 72, on_new_version: {on_new_version}}}",
            "engine={replicas: 2, max_batch: 64}",
            "sampling={max_tokens: 60, temperature: 1.3}",
            "train.steps=24",
        ),
        timeout=2 * DEADLINE,
    )
    assert result.returncode == 0, result.stderr
    assert_accounted_for(run)
    assert_load_is_spread(run)
    rollouts = list(read_jsonl(run / "rollouts.jsonl", Rollout))
    assert most_at_once(rollouts) >= 64
    records = steps(run)
    assert max(s for r in records for s in r.staleness) <= 12
    drops = Counter(d.reason for r in read_jsonl(run / "steps.jsonl", StepRecord) for d in r.dropped)
    assert drops["stale"] <= 0.05 * len(rollouts), "admission is paced so that drops are rare"
    assert not any(reason.startswith("failed") for reason in drops)
    over_tools = 0
    for rollout in rollouts:
        versions = [v for action in rollout.actions for v in action.versions]
        assert versions == sorted(versions)
        for action, between, later in zip(rollout.segments, rollout.segments[1:], rollout.segments[2:], strict=False):
            if isinstance(action, Action) and isinstance(later, Action):
                assert isinstance(between, Observation)
                over_tools += action.versions[-1] < later.versions[0]
    assert over_tools > len(rollouts) / 4, "most episodes outlast a version"
    # What is older than the bound loses its version on the engine, goes on under the newest, and is dropped as stale.
    consumed = {name for record in records for name in record.consumed}
    trained = [action for rollout in rollouts if rollout.id in consumed for action in rollout.actions]
    changed_within = [action.versions for action in trained if len({*action.versions}) > 1]
    assert bool(changed_within) == (on_new_version == "interrupt")
    # What the newest version has sampled agrees with the learner, also where it went on from another's tokens.
    assert max(r.metrics.get("mismatch_max", 0.0) for r in records) < 1e-2


def most_at_once(rollouts: list[Rollout]) -> int:
    """Most episodes that were in flight at once."""
    changes = [(r.timings.started_at, 1) for r in rollouts]
    changes += [(r.timings.started_at + r.timings.total, -1) for r in rollouts]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


@pytest.mark.parametrize("group", ["", "algorithm={preset: grpo, advantage: {type: group_zscore, group_size: 4}}"])
def test_sync_does_one_thing_after_the_other(moonmill: Cli, attached: Path, tmp_path: Path, group: str) -> None:
    result = moonmill("train", attached, *sets("async.mode=sync", "train.steps=4", *filter(None, [group])), "--json")
    assert result.returncode == 0, result.stderr
    assert_accounted_for(tmp_path / "run")
    records = steps(tmp_path / "run")
    assert {s for record in records for s in record.staleness} == {0}
    assert all(record.metrics.get("masked_share", 0.0) == 0.0 for record in records)
    # A batch is sampled by one version alone, the one that the step before it made.
    rollouts = {r.id: r for r in read_jsonl(tmp_path / "run" / "rollouts.jsonl", Rollout)}
    for before, record in pairwise(records):
        versions = {v for name in record.consumed for a in rollouts[name].actions for v in a.versions}
        assert versions == {before.version}
    # Nothing overlaps, and everybody has waited for everybody.
    overlap = sum(r.spans.both for r in records)
    assert overlap < 0.02 * sum(r.spans.learning for r in records)
    for cause in ("rollouts", "learner", "handover", "stragglers"):
        assert sum(getattr(r.waits, cause) for r in records) > 0, cause
    # A slot is free, or has an episode; free slots have one cause each.
    wall = sum(r.spans.wall for r in records)
    free = sum(r.waits.learner + r.waits.handover + r.waits.stragglers for r in records)
    assert free <= wall * 1.001
    summary = as_json(result)
    assert isinstance(summary, dict)
    assert summary["waits"]["free slots wait for the learner"] > 0


EASY = """
from moonmill import reward
from moonmill.envs.library.calculator import Calculator

class Same(Calculator):
    @reward
    def correct(self, rollout):
        return 1.0
"""
GROUPS = "algorithm={preset: grpo, advantage: {type: group_zscore, group_size: 4}}"


def test_filtered_groups_are_dropped_with_the_reason_also_over_a_kill(
    moonmill: Cli, attached: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = [*sets(GROUPS, "async.filters={zero_std: true, overlong: true}", "train.steps=8")]
    with start(attached, tmp_path, *words) as trainer:
        wait_for_steps(run, 3, trainer)
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait(DEADLINE)
    resumed = moonmill("train", attached, *words, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert_accounted_for(run)
    assert [s.step for s in steps(run)] == list(range(1, 9))
    rollouts = {r.id: r for r in read_jsonl(run / "rollouts.jsonl", Rollout)}
    of_group: dict[str | None, list[Rollout]] = {}
    for record in steps(run):
        for name in record.consumed:
            of_group.setdefault(rollouts[name].group, []).append(rollouts[name])
    assert all(len({r.reward for r in members}) > 1 for members in of_group.values())
    reasons = {d.rollout: d.reason for r in read_jsonl(run / "steps.jsonl", StepRecord) for d in r.dropped}
    alike = [name for name, reason in reasons.items() if reason == "filter: zero_std"]
    assert alike
    for name in alike:
        members = [r for r in rollouts.values() if r.group == rollouts[name].group]
        assert len({r.reward for r in members if reasons.get(r.id) != "filter: overlong"}) == 1
    assert all(rollouts[n].status == "truncated" for n, reason in reasons.items() if reason == "filter: overlong")


def test_a_run_of_which_all_is_filtered_ends_with_the_reasons(moonmill: Cli, attached: Path, tmp_path: Path) -> None:
    (tmp_path / "easy.py").write_text(EASY)
    words = sets(GROUPS, "async.filters.zero_std=true", f"env.id={tmp_path / 'easy.py'}:Same", "train.max_failures=8")
    result = moonmill("train", attached, *words)
    assert result.returncode == 1
    assert "the last 128 rollouts were of no use" in result.stderr
    assert "128 filter: zero_std" in result.stderr
    assert "loosen async.filters" in result.stderr
    assert "Traceback" not in result.stderr
    assert_accounted_for(tmp_path / "run", unfinished_group=4)
