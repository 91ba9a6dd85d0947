"""What a comparison consists of, and what its figures say."""

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from moonmill.config import Config
from moonmill.config_io import make_config
from moonmill.errors import ConfigError
from moonmill.jsonl import JsonlWriter
from moonmill.rundir import RunDirectory
from moonmill.trainer.compared import RunFigures, arm_of, figure, figures_of
from moonmill.trainer.comparing import Arm, arms_of, plan, rollouts_of
from moonmill.trainer.records import StepRecord

GRPO = "grpo:algorithm={preset: grpo}"


def load(overrides: Sequence[str]) -> Config:
    data = {
        "env": {"id": "calculator-v0"},
        "model": {"path": "none"},
        "algorithm": {"preset": "sao", "critic": {"warmup_steps": 4}},
        "learner": {"batch_rollouts": 16},
        "train": {"steps": 20, "seed": 3},
    }
    return make_config(data, overrides, source="test", folder=Path.cwd())


def names(modes: str | None, *variations: str) -> list[str]:
    return [arm.name for arm in arms_of(modes, variations)]


def test_without_a_word_the_two_modes_are_compared_and_with_variations_those() -> None:
    assert names(None) == ["sync", "async"]
    assert names(None, GRPO, "low:learner.lr=1e-5") == ["grpo", "low"]


def test_modes_name_what_is_compared_in_their_order() -> None:
    assert names("async,grpo,sync", GRPO) == ["async", "grpo", "sync"]


def test_a_variation_has_several_keys_and_commas_in_brackets_or_quotes_are_the_values_own() -> None:
    text = (
        "g:algorithm={preset: grpo, advantage: {type: group_zscore, group_size: 4}}, learner.betas=[0.9, 0.99],a='x,y'"
    )
    assert arms_of(None, [text]) == (
        Arm(
            "g",
            (
                "algorithm={preset: grpo, advantage: {type: group_zscore, group_size: 4}}",
                "learner.betas=[0.9, 0.99]",
                "a='x,y'",
            ),
        ),
    )


def test_a_variation_that_comes_again_adds_to_what_it_changes() -> None:
    assert arms_of(None, [GRPO, "grpo:async.mode=sync"]) == (
        Arm("grpo", ("algorithm={preset: grpo}", "async.mode=sync")),
    )


@pytest.mark.parametrize(
    ("modes", "variations", "why"),
    [
        ("sync,grpo", [], "'grpo' is not one of sync, async; --vary describes others"),
        ("sync,sync", [], "a name stands there twice"),
        (None, ["grpo"], "expected name:key=value"),
        (None, ["grpo:"], "expected name:key=value"),
        (None, ["../x:learner.lr=1"], "a name has letters"),
        (None, ["sync:learner.lr=1"], "sync is the mode of that name already"),
        (None, ["grpo:,,"], "expected name:key=value"),
    ],
)
def test_what_makes_no_sense_is_told(modes: str | None, variations: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        arms_of(modes, variations)


def test_all_arms_train_on_as_many_rollouts_with_those_of_the_critics_warm_up(tmp_path: Path) -> None:
    arms = arms_of("async,grpo,half", [GRPO, "half:learner.batch_rollouts=8"])
    jobs = plan(load, arms, 1, tmp_path)
    assert {rollouts_of(job.config) for job in jobs} == {(20 + 4) * 16}
    assert {job.arm: job.config.train.steps for job in jobs} == {"async": 20, "grpo": 24, "half": 44}


@pytest.mark.parametrize(
    ("variation", "why"),
    [
        (
            "odd:learner.batch_rollouts=7",
            r"odd: the budget of 384 rollouts.* no multiple of its learner\.batch_rollouts",
        ),
        ("long:algorithm.critic.warmup_steps=24", "long: the budget of 384 rollouts.* leaves no policy update"),
    ],
)
def test_an_arm_that_cannot_come_to_the_budget_is_refused(tmp_path: Path, variation: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan(load, arms_of(None, [variation]), 1, tmp_path)


@pytest.mark.parametrize(
    ("variation", "changed"),
    [
        ("train.steps=9", "train.steps from 20 to 9"),
        ("train={steps: 9, seed: 3}", "train.steps from 20 to 9"),
        ("train={steps: 20, seed: 9}", "train.seed from 3 to 9"),
        ("train={seed: 9}", "train.steps from 20 to 100 and train.seed from 3 to 9"),
        ("run_dir=elsewhere", "run_dir from .* to .*elsewhere'"),
    ],
)
def test_an_arm_that_would_change_what_the_comparison_decides_is_refused(
    tmp_path: Path, variation: str, changed: str
) -> None:
    """However it says so: as a key, or with the section around it."""
    with pytest.raises(ConfigError, match=f"^more: changes {changed}: the comparison decides that"):
        plan(load, arms_of(None, [f"more:{variation}"]), 1, tmp_path)


def test_an_arm_may_change_the_rest_of_a_section(tmp_path: Path) -> None:
    (job,) = plan(load, arms_of(None, ["more:train={steps: 20, seed: 3, checkpoint_every: 7}"]), 1, tmp_path)
    assert job.config.train.checkpoint_every == 7


def test_each_arm_is_run_with_each_seed_in_a_folder_of_its_own(tmp_path: Path) -> None:
    jobs = plan(load, arms_of(None, ()), 2, tmp_path)
    assert [(job.arm, job.seed) for job in jobs] == [("sync", 3), ("async", 3), ("sync", 4), ("async", 4)]
    assert [job.path for job in jobs] == [tmp_path / f"{job.arm}-seed{job.seed}" for job in jobs]
    assert all(job.config.train.seed == job.seed and job.config.async_.mode == job.arm for job in jobs)


def test_the_interval_is_students() -> None:
    # Mean 2, standard deviation 1, t(2) = 4.303.
    assert figure([1.0, 2.0, 3.0]).margin == pytest.approx(4.303 / math.sqrt(3))
    assert figure([2.0]).margin is None
    assert figure([0.0, 2.0] * 50).margin == pytest.approx(1.96 * 1.00504 / 10, rel=1e-3)


def test_what_a_run_came_to(tmp_path: Path) -> None:
    def figures(rewards: Sequence[float]) -> dict[str, float]:
        run = RunDirectory.create(tmp_path / str(len(list(tmp_path.iterdir()))), load(()))
        with closing(JsonlWriter(run.steps)) as log:
            for number, reward in enumerate(rewards, start=1):
                metrics = {"explained_variance_smoothed": number / 100, "masked_share": number / 1000}
                log.append(StepRecord(number, number, ("a", "b"), reward=reward, metrics=metrics))
        return figures_of("arm", 0, run.path).figures

    risen = figures([0.1 + 0.04 * n for n in range(20)])
    assert risen["reward at the end"] == pytest.approx(0.84)
    assert risen["area under the reward"] == pytest.approx(0.48)
    assert risen["explained variance"] == pytest.approx(0.195)
    assert risen["masked"] == pytest.approx(0.0105)
    assert not risen["collapsed"]
    assert not figures([0.2] + [0.8] * 10 + [0.41] * 9)["collapsed"]
    assert figures([0.2] + [0.8] * 10 + [0.39] * 9)["collapsed"]
    assert not figures([-0.2] * 20)["collapsed"]
    assert figures([-0.2] * 10 + [-0.31] * 10)["collapsed"]


def test_a_run_that_fell_back_has_no_reward_of_0_where_it_did(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", load(()))
    with closing(JsonlWriter(run.steps)) as log:
        log.append(StepRecord(1, 1, ("a",), reward=0.5))
        log.append(StepRecord(2, 2, ("b",), reward=0.4))
        log.append(StepRecord(3, 3, rolled_back_to=1))
    found = figures_of("arm", 0, run.path)
    assert found.curve.reward == (0.5, 0.4)
    assert found.figures["reward at the end"] == 0.4
    assert not found.figures["collapsed"]


def test_an_arms_figures_are_those_of_its_finished_runs() -> None:
    def run(arm: str, seed: int, status: str, reward: float) -> RunFigures:
        return RunFigures(arm, seed, "", status, {"reward": reward}, {"tools": 2 * reward})

    runs = [
        run("a", 0, "finished", 1.0),
        run("a", 1, "finished", 3.0),
        run("a", 2, "failed", 9.0),
        run("b", 0, "x", 7.0),
    ]
    arm = arm_of("a", runs, "a")
    assert (arm.runs, arm.finished) == (3, 2)
    assert (arm.figures["reward"].mean, arm.waits["tools"].mean) == (2.0, 4.0)
    assert arm_of("b", runs, "a").figures == {}


def test_an_arm_stands_beside_the_first_seed_by_seed() -> None:
    def run(arm: str, seed: int, reward: float, speed: float, status: str = "finished") -> RunFigures:
        return RunFigures(arm, seed, "", status, {"reward": reward, "rollouts/s": speed})

    runs = [
        *(run("a", seed, float(seed), 2.0) for seed in range(3)),
        *(run("b", seed, 2.0 * seed + 0.5, 4.0 + seed) for seed in range(3)),
        run("a", 3, 0.0, 2.0, "failed"),
        run("b", 3, 9.0, 9.0),
        run("c", 7, 1.0, 1.0),
    ]
    beside = arm_of("b", runs, "a").beside_first
    assert beside["reward"] == figure([0.5, 1.5, 2.5])
    assert beside["speed"] == figure([2.0, 2.5, 3.0])
    assert arm_of("a", runs, "a").beside_first == arm_of("c", runs, "a").beside_first == {}
