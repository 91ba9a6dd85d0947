"""What a step's line takes from its record."""

import pytest

from moonmill.algorithm_config import AlgorithmConfig, CriticConfig, PretrainConfig
from moonmill.cli.progress import step_text
from moonmill.config import Config, EnvConfig, ModelConfig, TrainConfig
from moonmill.trainer.buffer import Batch
from moonmill.trainer.lines import Length, step_line, step_record
from moonmill.trainer.messages import StepAnswer
from moonmill.trainer.records import StepRecord
from moonmill.types import Rollout, Status, StopReason, Task


def test_what_went_wrong_in_its_rollouts_is_on_the_line() -> None:
    record = StepRecord(3, 2, ("0",), staleness=(1,), reward=1.0, truncated=0.25, tool_fault_share=0.5)
    rollout = Rollout("0", "test-v0", Task("?"), Status.TRUNCATED, StopReason.MAX_TURNS, reward=1.0)
    line = step_line(record, Batch((rollout,), (1,)), Length(9, 0), success=1.0)
    assert (line.truncated, line.tool_errors) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("groups", "rewards", "words"),
    [
        ((None, None), (1.0, 1.0), "rewards alike in the batch"),
        ((None, None), (1.0, 0.0), None),
        (("a", "a", "b", "b"), (1.0, 1.0, 0.0, 0.0), "rewards alike in each group"),
        (("a", "a", "b", "b"), (1.0, 1.0, 0.0, 1.0), None),
    ],
)
def test_a_step_whose_rewards_tell_nothing_apart_says_so(
    groups: tuple[str | None, ...], rewards: tuple[float, ...], words: str | None
) -> None:
    task, status, reason = Task("?"), Status.FINISHED, StopReason.ANSWERED
    told = zip(groups, rewards, strict=True)
    batch = Batch(
        tuple(Rollout("0", "test-v0", task, status, reason, reward=reward, group=group) for group, reward in told),
        (0,) * len(groups),
    )
    line = step_text(step_line(step_record(batch, StepAnswer(1, 1, None, {})), batch, Length(9, 0), success=1.0))
    assert [part for part in line.split("  ") if "alike" in part] == ([words] if words else [])


def told(length: Length, step: int, version: int) -> str:
    """How a step is told."""
    rollout = Rollout("0", "test-v0", Task("?"), Status.FINISHED, StopReason.ANSWERED, reward=1.0)
    record = StepRecord(step, version, ("0",), staleness=(0,), reward=1.0)
    return step_text(step_line(record, Batch((rollout,), (0,)), length, success=1.0)).partition("  v")[0]


def config_of(critic: CriticConfig | None) -> Config:
    return Config(EnvConfig("e-v0"), ModelConfig("m"), algorithm=AlgorithmConfig(critic=critic), train=TrainConfig(100))


def test_steps_are_counted_with_those_that_train_the_critic_alone() -> None:
    length = Length.of(config_of(CriticConfig(warmup_steps=8)))
    assert [told(length, 8, 0), told(length, 9, 1)] == ["step 8/108 (critic warm-up)", "step 9/108"]
    # A step whose update was left out makes no version either, and the run is one step longer.
    assert told(length, 20, 11) == "step 20/109"


def test_while_it_is_not_known_how_many_those_are_the_most_there_can_be_is_told() -> None:
    pretrain = PretrainConfig(max_steps=200)
    length = Length.of(config_of(CriticConfig(warmup_steps=8, pretrain=pretrain)))
    assert told(length, 9, 0) == "step 9/at most 300 (critic warm-up)"
    assert told(length, 31, 1) == "step 31/130"


@pytest.mark.parametrize(("version", "ready", "done"), [(0, False, False), (0, True, False), (100, True, True)])
def test_a_run_is_done_with_its_last_version(version: int, ready: bool, done: bool) -> None:
    assert Length.of(config_of(None)).is_done(version, critic_ready=ready) == done


def test_one_for_the_critic_alone_is_done_when_that_is_ready() -> None:
    length = Length.of(config_of(CriticConfig(warmup_steps=8)), critic_only=True)
    assert not length.is_done(0, critic_ready=False)
    assert length.is_done(0, critic_ready=True)
    assert told(length, 3, 0) == "step 3/8 (critic warm-up)"


def test_groups_whose_rewards_are_all_the_same_are_counted() -> None:
    def rollout(group: str | None, reward: float) -> Rollout:
        status, reason = Status.FINISHED, StopReason.ANSWERED
        return Rollout("0", "test-v0", Task("?"), status, reason, reward=reward, group=group)

    def share(*rollouts: Rollout) -> float | None:
        return step_record(Batch(rollouts, (0,) * len(rollouts)), StepAnswer(1, 1, None, {})).same_rewards

    assert share(rollout("a", 1.0), rollout("a", 1.0), rollout("b", 0.0), rollout("b", 1.0)) == 0.5
    assert share(rollout(None, 1.0), rollout(None, 1.0)) is None
