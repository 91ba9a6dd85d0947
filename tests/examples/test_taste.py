"""The taste that changes: its tasks, its rewards, its expert and the policy to start from."""

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from moonmill.agents.rendering import load_renderer
from moonmill.config_io import load_config
from moonmill.envs import Taskset
from moonmill.registry import make
from moonmill.types import Message, Rollout, Status, StopReason, Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "study"
TASTE = f"{EXAMPLE}/taste.py:Taste"


def env(**args: Any) -> Any:
    return make(TASTE, **args)


def tasks(split: str, count: int, **args: Any) -> list[Task]:
    taskset = Taskset(lambda: env(**args), split, 0)
    return [taskset.task(number) for number in range(count)]


def ended(one: Any, status: Status = Status.FINISHED) -> float:
    """The reward of what has been played."""
    return float(one.correct(Rollout("r", TASTE, one.task, status, StopReason.ANSWERED, messages=tuple(one.messages))))


def rewarded(task: Task, answer: str, **args: Any) -> float:
    """What is paid for an answer without a call."""
    one = env(**args)
    one.reset(options={"task": task})
    one.step(Message("assistant", answer))
    return ended(one)


def test_the_wanted_way_is_paid_in_full_the_other_less_and_what_is_wrong_not_at_all() -> None:
    task = tasks("train", 1)[0]
    answer = str(task.answer)
    said = (answer, f"={answer}", f"={answer}1", "", "=")
    assert [rewarded(task, text, second=0.3) for text in said] == [1.0, 0.3, 0.0, 0.0, 0.0]
    (flipped,) = tasks("train", 1, flip_at=0)
    assert [rewarded(flipped, text) for text in (answer, f"={answer}", f"=={answer}")] == [0.5, 1.0, 0.0]
    one = env()
    one.reset(options={"task": task})
    one.step(Message("assistant", answer))
    assert ended(one, Status.TRUNCATED) == 0.0


def test_the_other_way_is_wanted_from_a_task_on_and_nothing_else_changes() -> None:
    before, after = tasks("train", 20), tasks("train", 20, flip_at=10)
    assert before[:10] == after[:10]
    for one, other in zip(before[10:], after[10:], strict=True):
        assert (one.prompt, one.id, one.level) == (other.prompt, other.id, other.level)
        assert other.answer == f"={one.answer}"


def test_a_pool_comes_again_with_the_same_ids_and_the_splits_share_none() -> None:
    train = tasks("train", 30, pool=10)
    assert [t.id for t in train] == [t.id for t in train[:10]] * 3
    assert len({t.id for t in tasks("train", 300)} & {t.id for t in tasks("eval", 300)}) == 0


def test_the_expert_is_right_and_marks_half_of_its_answers() -> None:
    expert = vars(sys.modules[type(env()).__module__])["demonstrate"]
    config, renderer, rewards = load_config(EXAMPLE / "taste.yaml"), load_renderer(EXAMPLE / "taste"), []
    for task in islice(tasks("train", 100), 100):
        one = env()
        one.reset(options={"task": task})
        done = False
        while not done:
            _, _, done, _, _ = one.step(expert(one.messages))
        rewards.append(ended(one))
        ids, _ = renderer.transcript(one.messages, one.tool_specs)
        assert len(ids) <= 110 < config.model.max_length
    assert set(rewards) == {0.5, 1.0}
    assert rewards.count(0.5) == pytest.approx(50, abs=15)


def test_the_config_changes_what_is_wanted_in_the_middle_and_after_its_batches() -> None:
    config = load_config(EXAMPLE / "taste.yaml")
    assert Path(config.model.path).resolve() == EXAMPLE / "taste"
    assert config.env.args["flip_at"] % config.learner.batch_rollouts == 0
    assert config.env.args["flip_at"] < config.train.steps * config.learner.batch_rollouts / 2
