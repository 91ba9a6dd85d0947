"""The calculator environment."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonmill.envs import Taskset
from moonmill.envs.library.calculator import LARGEST, Calculator, demonstrate
from moonmill.envs.library.splits import split_of
from moonmill.errors import ConfigError
from moonmill.registry import make
from moonmill.types import Message, Rollout, Status, StopReason, Task, ToolCall

TASK = Task("((48+7)*21)-530", 625, level="3")


def tasks(split: str, seed: int = 0, n: int = 500, levels: tuple[int, ...] = (1, 2, 3, 4)) -> list[Task]:
    taskset = Taskset(lambda: Calculator(levels=levels), split, seed)
    return [taskset.task(i) for i in range(n)]


def begin(task: Task = TASK) -> Calculator:
    env = Calculator()
    env.reset(seed=0, options={"task": task})
    return env


def call(expression: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall("1", "calculate", {"expression": expression}),))


def score(env: Calculator, status: Status = Status.FINISHED) -> float:
    rollout = Rollout("r", "calculator-v0", env.task, status, StopReason.ANSWERED, messages=tuple(env.messages))
    return env.correct(rollout)


# Tasks


def test_is_registered() -> None:
    assert isinstance(make("calculator-v0", levels=[2]), Calculator)


def test_the_same_seed_makes_the_same_tasks_and_another_makes_others() -> None:
    assert tasks("train") == tasks("train")
    assert {t.prompt for t in tasks("train", 0)} != {t.prompt for t in tasks("train", 1)}


def test_train_and_eval_share_no_task_whatever_the_seed() -> None:
    # Level 1 has the fewest expressions, so here a shared one would show first.
    train = {t.prompt for seed in range(3) for t in tasks("train", seed, 1000, (1,))}
    held_out = {t.prompt for seed in range(3) for t in tasks("eval", seed, 1000, (1,))}
    assert not train & held_out
    assert {split_of(p) for p in train} == {"train"}
    assert {split_of(p) for p in held_out} == {"eval"}


def test_a_level_is_a_number_of_operations_and_all_are_equally_frequent() -> None:
    found = tasks("train", n=2000)
    for task in found:
        assert sum(str(task.prompt).count(sign) for sign in "+-*") == int(task.level)
    assert all(430 < n < 570 for n in Counter(t.level for t in found).values())


def test_levels_can_be_chosen() -> None:
    assert {t.level for t in tasks("eval", n=100, levels=(2, 4))} == {"2", "4"}


def test_the_answer_is_the_value_of_the_expression_as_python_reads_it() -> None:
    for task in tasks("train") + tasks("eval"):
        assert eval(str(task.prompt)) == task.answer


def test_all_results_on_the_way_are_within_bounds() -> None:
    for task in tasks("train"):
        env = begin(task)
        while not env.step(demonstrate(env.messages))[2]:
            assert 0 <= int(env.messages[-1].content) <= LARGEST


@pytest.mark.parametrize("levels", [[], [0], [5], ["2"], [1.5], 3, None])
def test_levels_that_do_not_exist_are_refused(levels: Any) -> None:
    with pytest.raises(ConfigError, match="whole numbers from 1 to 4"):
        Calculator(levels=levels)


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="it has train and eval"):
        next(Calculator().tasks("test"))


# The tool


@pytest.mark.parametrize(
    ("expression", "answer"),
    [("48+7", "55"), ("55*21", "1155"), ("1155-530", "625"), ("7-48", "-41"), ("-41*2", "-82"), (" 1 + 2 ", "3")],
)
def test_one_operation_is_worked_out(expression: str, answer: str) -> None:
    env = begin()
    observation, *_ = env.step(call(expression))
    assert [m.content for m in observation] == [answer]


@pytest.mark.parametrize(
    "expression",
    ["", "48", "48+", "48+7+1", "(48+7)", "48/7", "4**8", "1e9*1", "__import__('os')", "9" * 13 + "*1", "٤+٢", "1+2\n"],
)
def test_anything_else_is_an_error_for_the_model_and_the_episode_goes_on(expression: str) -> None:
    env = begin()
    observation, _, terminated, truncated, _ = env.step(call(expression))
    assert [m.content for m in observation] == ["error: use a+b, a-b or a*b"]
    assert not terminated
    assert not truncated


@given(st.text(alphabet="0123456789+-*/() .e_", max_size=40))
def test_no_expression_raises(expression: str) -> None:
    assert begin().step(call(expression))[0][0].content


def test_the_tool_takes_one_required_string() -> None:
    [spec] = Calculator().tool_specs
    assert spec.name == "calculate"
    assert "once for each of its operations" in spec.description
    assert spec.parameters["required"] == ["expression"]
    assert spec.parameters["properties"]["expression"]["type"] == "string"


# The score


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("625", 1.0), ("It comes to 625.", 1.0), ("624", 0.0), ("", 0.0), ("none", 0.0), ("625 or 626", 0.0)],
)
def test_the_right_number_as_the_answer_is_worth_1(answer: str, reward: float) -> None:
    env = begin()
    env.step(answer)
    assert score(env) == reward


def test_an_episode_that_was_cut_is_worth_nothing() -> None:
    env = begin()
    env.step("625")
    assert score(env, Status.TRUNCATED) == 0.0


def test_calls_are_counted() -> None:
    env = begin()
    for expression in ("48+7", "nonsense", "55*21"):
        env.step(call(expression))
    assert env.tool_calls(Rollout("r", "", TASK, Status.FINISHED, StopReason.ANSWERED)) == 3.0


# The expert


def test_the_expert_solves_every_task_with_one_call_for_each_operation() -> None:
    for task in islice(tasks("eval"), 100):
        env = begin(task)
        while not env.step(demonstrate(env.messages))[2]:
            pass
        assert score(env) == 1.0
        assert env.calls == int(task.level)


def test_the_expert_goes_on_after_another_ones_mistakes() -> None:
    env = begin()
    env.step(call("48+"))
    env.step(call("48*7"))
    assert demonstrate(env.messages).tool_calls[0].arguments == {"expression": "48+7"}
    env.step(demonstrate(env.messages))
    env.step(Message("assistant", tool_calls=(ToolCall("2", "calculate", "not json"),)))
    assert demonstrate(env.messages).tool_calls[0].arguments == {"expression": "55*21"}


def test_the_experts_calls_have_ids_of_their_own() -> None:
    env = begin()
    while not env.step(demonstrate(env.messages))[2]:
        pass
    ids = [c.id for m in env.messages for c in m.tool_calls]
    assert len(ids) == len(set(ids)) == 3
