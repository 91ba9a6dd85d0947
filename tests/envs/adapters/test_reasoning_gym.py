"""reasoning-gym's data sets as environments: drawn, scored, and kept from harm."""

import random
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy
import pytest

from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import Taskset
from moonmill.envs.adapters import reasoning_gym
from moonmill.envs.adapters.reasoning_gym import LEFT_OUT, Drawn, answer_in
from moonmill.envs.workers import WORKERS
from moonmill.errors import ConfigError, MissingExtraError
from moonmill.registry import make
from moonmill.types import Rollout, Status, Task

WORK = "moonmill.envs.adapters.reasoning_gym_work"
WITHOUT_ANSWER = {
    "boxnet": "several plans solve a problem, and the data set gives none",
    "graph_color": "several colourings solve a problem, and the data set gives none",
    "propositional_logic": "several conclusions follow, and the data set gives none",
    "rubiks_cube": "several sequences of moves solve a problem, and the data set gives none",
    "rush_hour": "several sequences of moves solve a problem, and the data set gives none",
}
"""A perfect agent cannot be scripted for these."""
SLOW = {
    "arc_agi": "its data set takes a second to make",
    "countdown": "its answers take half a second to check",
    "figlet_font": "its data set takes half a second to make",
    "group_anagrams": "its data set takes half a second to make",
    "intermediate_integration": "its answers take half a second to check",
    "knight_swap": "it takes half a second to make a problem",
    "quantum_lock": "it takes half a second to make a problem",
    "word_ladder": "it takes half a second to make a problem",
    "zebra_puzzles": "it takes half a second to make a problem",
}
"""They work, and were tried by hand."""


def task(name: str, split: str = "eval", index: int = 0, seed: int = 0, **arguments: Any) -> Task:
    return Taskset(lambda: make(f"reasoning-gym:{name}", **arguments), split, seed).task(index)


async def run(name: str, played: Task, text: str) -> Rollout:
    runner = EpisodeRunner(name, lambda: make(f"reasoning-gym:{name}"), ScriptedAgent(lambda messages: text))
    return await runner.run(played, id="r", seed=0)


def play(name: str, played: Task, text: str) -> Rollout:
    return anyio.run(run, name, played, text)


def give(answer: str) -> str:
    return f"I think so.\n<answer>{answer}</answer>"


@pytest.fixture(scope="module")
def names() -> list[str]:
    """Of the data sets that are to be had."""
    there: list[str] = WORKERS.call(f"{WORK}:names", limit=60)
    return [name for name in there if name != "composite" and name not in LEFT_OUT]


# Data sets


@pytest.fixture(scope="module")
def worth(names: list[str]) -> dict[str, tuple[float | None, float | None]]:
    """Of each data set, what a perfect and an empty answer are worth."""

    async def both(name: str) -> tuple[float | None, float | None]:
        played = task(name)
        perfect, empty = [await run(name, played, text) for text in (give(played.answer.answer), "")]
        assert perfect.status is empty.status is Status.FINISHED
        return perfect.reward, empty.reward

    async def all_of_them() -> dict[str, tuple[float | None, float | None]]:
        return {name: await both(name) for name in names if name not in WITHOUT_ANSWER and name not in SLOW}

    return anyio.run(all_of_them)


def test_a_perfect_agent_gets_1_and_an_empty_one_0(worth: dict[str, tuple[float | None, float | None]]) -> None:
    assert len(worth) >= 80
    assert {name: values for name, values in worth.items() if values != (1.0, 0.0)} == {}


def test_what_is_left_out_of_that_is_there_all_the_same(names: list[str]) -> None:
    assert not (WITHOUT_ANSWER.keys() | SLOW.keys()) - set(names)
    for name in WITHOUT_ANSWER:
        played = task(name)
        assert played.answer.answer is None
        assert [play(name, played, text).reward for text in ("", "\n \n")] == [0.0, 0.0]


def test_a_configuration_is_obeyed_and_tasks_come_from_the_seed() -> None:
    config = {"min_terms": 5, "max_terms": 5, "min_digits": 1, "max_digits": 1}
    played = task("chain_sum", config=config)
    assert sum(played.messages()[0].content.count(sign) for sign in "+-") == 4
    assert played == task("chain_sum", config=config) != task("chain_sum", config=config, seed=1)


def test_a_level_is_the_curriculums_and_told_by_the_task() -> None:
    digits = []
    for level in (0, 3):
        several = [task("chain_sum", index=index, levels=[level]) for index in range(3)]
        assert {played.level for played in several} == {str(level)}
        digits.append(sum(sign.isdigit() for played in several for sign in played.messages()[0].content))
    assert digits[0] < digits[1]
    assert {task("chain_sum", index=index, levels=[0, 1]).level for index in range(8)} == {"0", "1"}


def test_several_are_mixed_by_weight() -> None:
    datasets = [{"name": "chain_sum", "weight": 3, "levels": [1]}, "leg_counting"]
    taskset = Taskset(lambda: make("reasoning-gym:composite", datasets=datasets), "train", 0)
    levels = [taskset.task(index).level for index in range(40)]
    assert set(levels) == {"chain_sum 1", "leg_counting"}
    assert 20 < levels.count("chain_sum 1") < 40
    played = taskset.task(0)
    assert play("leg_counting", played, give(played.answer.answer)).reward == 1.0


def test_no_question_is_in_both_splits_though_there_are_few() -> None:
    few = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    questions = {}
    for split in ("train", "eval"):
        taskset = Taskset(lambda: make("reasoning-gym:chain_sum", config=few), split, 0)
        questions[split] = {taskset.task(index).prompt for index in range(80)}
    assert not questions["train"] & questions["eval"]


def test_the_random_numbers_of_this_process_stay_as_they_are() -> None:
    before, theirs = random.getstate(), numpy.random.get_state()[1].tolist()
    played = task("pool_matrix")
    play("pool_matrix", played, give("1 2"))
    assert random.getstate() == before
    assert numpy.random.get_state()[1].tolist() == theirs


# Scores


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> or <answer> 2 3\n4 </answer>.", "2 3\n4"),
        ("So it is\n 7 \n\n", "7"),
        ("<answer>7", "<answer>7"),
        ("7 <answer></answer>", ""),
        (" \n", ""),
    ],
)
def test_the_answer_stands_in_tags_or_in_the_last_line(text: str, answer: str) -> None:
    assert answer_in(text) == answer


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("prime_factorization", "garbage"),  # raises
        ("boxnet", "7"),  # raises
        ("simple_integration", "nan"),
        ("chain_sum", "nan"),
        ("fraction_simplification", "  "),  # pays for nothing
        ("countdown", ""),  # pays for nothing
    ],
)
def test_nonsense_is_worth_nothing_and_fails_nothing(name: str, answer: str) -> None:
    rollout = play(name, task(name), give(answer))
    assert (rollout.status, rollout.reward, rollout.error) == (Status.FINISHED, 0.0, None)


def test_an_answer_runs_no_code_though_the_scorer_evaluates_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    attacks = (
        f"__import__('pathlib').Path({str(mark)!r}).touch()",
        f"[__import__('pathlib').Path({str(mark)!r}).touch()]",
        f"lambdify([], 'open({str(mark)!r}, \"w\")')()",
        f"Integer.__init__.__globals__['__builtins__']['open']({str(mark)!r}, 'w')",
    )
    for name in ("spiral_matrix", "n_queens", "string_insertion", "polynomial_multiplication", "simple_integration"):
        played = task(name)
        assert {play(name, played, give(attack)).reward for attack in attacks} == {0.0}
    assert not mark.exists()


def test_what_those_scorers_are_to_read_they_still_read() -> None:
    def reward(name: str, answer: str) -> float | None:
        played = task(name)
        return play(name, played, give(answer.format(played.answer.answer))).reward

    assert reward("polynomial_multiplication", "0 + {} + 0*sqrt(4)") == 1.0
    assert reward("simple_integration", "{} - 7") == 1.0
    assert reward("spiral_matrix", str(task("spiral_matrix").answer.answer.split()).replace("'", "")) == 0.1


def test_a_scorer_that_hangs_is_killed_and_another_worker_draws_and_scores_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def several() -> list[tuple[Any, str | None]]:
        names = ("pool_matrix", "list_functions", "knights_knaves", "word_sorting", "rearc")
        return [(drawn.prompt, drawn.answer.answer) for drawn in (task(name, "train", 2) for name in names)]

    before, played = several(), task("polynomial_multiplication")
    with monkeypatch.context() as patched:
        patched.setattr(reasoning_gym.ReasoningGym, "score_seconds", 0.5)
        rollout = play("polynomial_multiplication", played, give("9**9**9**9"))
    assert (rollout.status, rollout.reward) == (Status.FINISHED, None)
    assert play("polynomial_multiplication", played, give(played.answer.answer)).reward == 1.0
    assert several() == before


# Bad input


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("leg_count", {}, "reasoning-gym:leg_count: there is no such data set; did you mean leg_counting"),
        ("codeio", {}, "reasoning-gym:codeio: this data set is left out, because it runs programs"),
        ("coin_flip", {}, "because its scorer pays in full for 0"),
        (
            "chain_sum",
            {"config": {"terms": 1}},
            "config has terms, but can have: allow_negation, max_digits, max_terms",
        ),
        ("chain_sum", {"config": {"seed": 1}}, "config has seed, but can have"),
        (
            "chain_sum",
            {"config": {"min_terms": 0}},
            r"config {'min_terms': 0} cannot be: AssertionError: min_terms must",
        ),
        ("chain_sum", {"levels": [99]}, r"reasoning-gym:chain_sum, level 99: it has the levels 0 to \d"),
        ("chain_sum", {"levels": ["a"]}, r"no data set to mix in: Expected `int`, got `str` - at `\$.levels"),
        ("acre", {"levels": [0]}, "reasoning-gym:acre, level 0: it has no levels: leave them out"),
        ("chain_sum", {"datasets": ["lcm"]}, "datasets is for reasoning-gym:composite alone"),
        ("composite", {}, "needs datasets alone, a list such as"),
        ("composite", {"datasets": "lcm"}, "needs datasets alone, a list such as"),
        ("composite", {"datasets": ["lcm"], "levels": [1]}, "needs datasets alone"),
        ("composite", {"datasets": [{"name": "lcm", "weight": 0}]}, r"Expected `float` > 0.0 - at `\$.weight`"),
        ("composite", {"datasets": [{"name": "lcm", "wait": 1}]}, "unknown field `wait`"),
        ("composite", {"datasets": ["composite"]}, "reasoning-gym:composite: there is no such data set"),
    ],
)
def test_what_cannot_be_is_told(name: str, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make(f"reasoning-gym:{name}", **arguments)


def test_a_split_that_does_not_exist_or_is_empty_is_told() -> None:
    with pytest.raises(ConfigError, match="reasoning-gym has no split 'test'"):
        task("lcm", "test")
    message = "reasoning-gym:count_bits makes too few problems for a split eval of its own"
    with pytest.raises(ConfigError, match=message):
        task("count_bits", "eval", config={"min_n": 5, "max_n": 5})


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning_gym, "_is_installed", lambda: False)
    with pytest.raises(MissingExtraError, match=r"reasoning-gym:lcm: .* pip install 'moonmill\[reasoning-gym\]'"):
        make("reasoning-gym:lcm")


def test_a_task_that_comes_from_a_log_is_scored_as_well() -> None:
    played = msgspec.json.decode(msgspec.json.encode(task("leg_counting")), type=Task)
    assert isinstance(played.answer, dict)
    assert play("leg_counting", played, give(played.answer["answer"])).reward == 1.0
    assert msgspec.convert(played.answer, Drawn).source.name == "leg_counting"
