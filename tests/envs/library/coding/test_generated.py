"""The generator of programming tasks."""

import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from random import Random
from typing import Any

import pytest

from moonmill.envs.library.coding import generated
from moonmill.envs.library.coding.expert import solve
from moonmill.envs.library.coding.generated import HIDDEN, MAX_LEVEL, MOST_ALIKE, SHOWN, generated_tasks, split_of
from moonmill.envs.library.coding.grading import CallTests
from moonmill.envs.library.coding.inputs import probes, smallest
from moonmill.envs.library.coding.inside import decode
from moonmill.envs.library.coding.programs import STARTS, STEPS, Filled, Program, as_equal
from moonmill.types import Task

LEVELS = (1, 2, 3, 4)


def tasks(split: str, n: int, seed: int = 0, levels: tuple[int, ...] = LEVELS) -> list[Task]:
    return list(islice(generated_tasks(Random(seed), split, levels), n))


@pytest.fixture(scope="module")
def train() -> list[Task]:
    return tasks("train", 300)


@pytest.fixture(scope="module")
def held_out() -> list[Task]:
    return tasks("eval", 150)


def answer_of(task: Task) -> CallTests:
    assert isinstance(task.answer, CallTests)
    return task.answer


def outputs(task: Task, source: str) -> list[str]:
    scope: dict[str, Any] = {}
    exec(source, scope)
    return [as_equal(scope["solve"](*decode(call)[0])) for call in answer_of(task).calls]


# The steps


@pytest.mark.parametrize("index", range(len(STEPS)), ids=[f"{s.takes}: {s.words:.40}" for s in STEPS])
def test_a_step_is_defined_for_all_inputs_gives_its_kind_and_changes_no_argument(index: int) -> None:
    step = STEPS[index]
    kinds = {"numbers": list, "text": str, "words": list, "number": int, "counts": dict, "truth": bool}
    items = {"numbers": int, "words": str}
    bounds = step.n or (0, 0)
    for n in {*bounds}:
        program = Program((Filled(step, n, "a", "e"),))
        given = probes(step.takes)
        for value, result in zip(given, program.results(given), strict=True):
            assert type(result) is kinds[step.gives], (value, result)
            if step.gives in items:
                assert all(type(item) is items[step.gives] for item in result)
            if step.gives == "counts":
                assert all(type(k) is str and type(v) is int for k, v in result.items())
        assert given == probes(step.takes)


def test_the_words_of_a_step_are_its_own() -> None:
    assert len({(step.takes, step.words) for step in STEPS}) == len(STEPS)
    assert len({(step.takes, step.code) for step in STEPS}) == len(STEPS)


def test_words_and_code_name_the_same_places() -> None:
    for step in STEPS:
        in_words, in_code = ({*re.findall(r"\{([nab])\}", text)} for text in (step.words, step.code))
        assert in_words == in_code
        assert ("n" in in_words) == (step.n is not None)


def test_large_numbers_are_no_trouble() -> None:
    for step in STEPS:
        if step.takes in ("number", "numbers"):
            value = 10**300 if step.takes == "number" else [10**300, -(10**300)]
            Program((Filled(step, 3),)).results([value])


# The tasks


def test_the_same_seed_makes_the_same_tasks_and_another_makes_others(train: list[Task]) -> None:
    assert tasks("train", 20) == train[:20]
    assert tasks("train", 20, seed=1) != train[:20]


def test_another_process_with_other_hashes_makes_the_same_tasks(train: list[Task]) -> None:
    code = (
        "from random import Random; from itertools import islice; import msgspec; "
        "from moonmill.envs.library.coding.generated import generated_tasks; "
        "print(msgspec.json.encode(list(islice(generated_tasks(Random(0), 'train', (1, 2, 3, 4)), 20))).decode())"
    )
    import msgspec

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert done.stdout.strip() == msgspec.json.encode(train[:20]).decode()


def test_the_tasks_are_what_they_were() -> None:
    # Whoever changes them makes results incomparable, and gives the environment another version.
    import hashlib

    import msgspec

    made = msgspec.json.encode(tasks("train", 50) + tasks("eval", 50))
    assert hashlib.sha256(made).hexdigest() == "e490c911dd2aad5b9cc1e5e08c7002db142c86aee6427f9de1ed0598ac46ea05"


def test_no_function_is_in_both_splits(train: list[Task], held_out: list[Task]) -> None:
    behaviours = {
        split: {solve(str(t.prompt)).behaviour for t in ts} for split, ts in (("train", train), ("eval", held_out))
    }
    assert not behaviours["train"] & behaviours["eval"]
    for split, found in behaviours.items():
        assert {split_of(b) for b in found} == {split}


def test_levels_are_numbers_of_steps_and_equally_frequent(train: list[Task]) -> None:
    for task in train:
        assert len(solve(str(task.prompt)).steps) == int(task.level)
    assert all(45 < n < 110 for n in Counter(task.level for task in train).values())
    assert {t.level for t in tasks("eval", 20, levels=(2, 4))} == {"2", "4"}


def test_there_are_many_functions_of_many_kinds(train: list[Task]) -> None:
    programs = [solve(str(task.prompt)) for task in train]
    assert {program.takes for program in programs} == set(STARTS)
    assert {program.gives for program in programs} == {*STARTS, "truth"}
    assert len({program.behaviour for program in programs}) > 250
    used = {filled.step for program in programs for filled in program.steps}
    assert len(used) > 0.9 * len(STEPS)


def test_the_solution_passes_and_what_is_told_suffices_to_find_it(train: list[Task], held_out: list[Task]) -> None:
    for task in train + held_out:
        assert outputs(task, answer_of(task).solution) == list(answer_of(task).wanted)
        assert solve(str(task.prompt)).source == answer_of(task).solution


def test_the_examples_are_right_and_none_of_the_tests_is_shown(train: list[Task]) -> None:
    for task in train:
        examples = str(task.prompt).partition("Examples:\n")[2].splitlines()
        assert len(examples) == SHOWN
        scope: dict[str, Any] = {}
        exec(answer_of(task).solution, scope)
        for example in examples:
            assert eval(example, scope) is True
        shown = {repr(decode(call)[0][0]) for call in answer_of(task).calls}
        assert not any(example.startswith(f"solve({value}) ==") for example in examples for value in shown)


def test_the_prompt_holds_neither_the_solution_nor_the_tests(train: list[Task]) -> None:
    for task in train:
        assert "return value" not in str(task.prompt)
        assert not any(call in str(task.prompt) for call in answer_of(task).calls)


def test_tests_are_different_and_one_is_at_the_edge(train: list[Task]) -> None:
    edges = {kind: {as_equal(smallest(kind, Random(i))) for i in range(50)} for kind in STARTS}
    with_edge = 0
    for task in train:
        calls = answer_of(task).calls
        assert HIDDEN <= len(set(calls)) == len(calls) <= HIDDEN + 20
        given = {as_equal(decode(call)[0][0]) for call in calls}
        with_edge += bool(given & edges[solve(str(task.prompt)).takes])
    assert with_edge > 0.9 * len(train)


def test_always_giving_the_same_passes_few_tests(train: list[Task]) -> None:
    for task in train:
        wanted = answer_of(task).wanted
        assert max(Counter(wanted).values()) <= MOST_ALIKE * len(wanted)


def test_a_step_left_out_fails(train: list[Task]) -> None:
    for task in train:
        program = solve(str(task.prompt))
        for shorter in program.shorter():
            if shorter.takes == program.takes:
                assert outputs(task, shorter.source) != list(answer_of(task).wanted), (program, shorter)


def test_a_number_that_is_one_off_fails_nearly_always(train: list[Task]) -> None:
    near = [(task, p) for task in train for p in solve(str(task.prompt)).neighbours()]
    caught = sum(outputs(task, p.source) != list(answer_of(task).wanted) for task, p in near)
    assert caught > 0.95 * len(near) > 100


def test_a_function_that_knows_the_examples_alone_fails(train: list[Task]) -> None:
    for task in train:
        examples = str(task.prompt).partition("Examples:\n")[2].splitlines()
        lines = "".join(
            f"    if x == {e.partition('(')[2].partition(') == ')[0]}: return {e.partition(' == ')[2]}\n"
            for e in examples
        )
        got = outputs(task, f"def solve(x):\n{lines}")
        assert sum(a == b for a, b in zip(got, answer_of(task).wanted, strict=True)) == 0


def test_every_level_can_be_had() -> None:
    assert max(LEVELS) == MAX_LEVEL
    for level in LEVELS:
        assert [t.level for t in tasks("eval", 3, levels=(level,))] == [str(level)] * 3
    assert generated.EVAL_SHARE == 8
