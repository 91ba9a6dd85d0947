"""HumanEval through the sandbox: all 164 reference solutions pass, and each of them, once it is broken, fails."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from moonmill.envs.library.coding import humaneval
from moonmill.envs.library.coding.grading import Grade, Grader
from moonmill.envs.library.coding.humaneval import Problem, problems, task_of
from tests.envs.conftest import OpenSandbox

AT_ONCE = 4
OTHER_RESULT = """


def _breaking(function):
    def broken(*args):
        result = function(*args)
        if isinstance(result, bool):
            return not result
        if isinstance(result, (int, float)):
            return result + 1
        if isinstance(result, str):
            return result + "x"
        if isinstance(result, (list, tuple)):
            return result + type(result)([0])
        return {**result, "x": 1} if isinstance(result, dict) else 0
    return broken


NAME = _breaking(NAME)
"""


def grade_all(open_sandbox: OpenSandbox, submission: Callable[[Problem], str]) -> dict[str, Grade]:
    grader = Grader(open_sandbox, (str(humaneval.data_file()),), (humaneval.PACKAGE, "moonmill"))

    def one(problem: Problem) -> tuple[str, Grade]:
        return problem.task_id, grader.grade(task_of(problem).answer, submission(problem))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(pool.map(one, problems()))


def test_the_canonical_solutions_score_164_of_164(open_sandbox: OpenSandbox) -> None:
    grades = grade_all(open_sandbox, lambda problem: problem.prompt + problem.canonical_solution)
    assert len(grades) == 164
    assert {name: grade for name, grade in grades.items() if not grade.is_solved} == {}
    assert sum(grade.total for grade in grades.values()) > 1000


def test_164_broken_ones_score_0_of_164(open_sandbox: OpenSandbox) -> None:
    def broken(problem: Problem) -> str:
        return problem.prompt + problem.canonical_solution + OTHER_RESULT.replace("NAME", problem.entry_point)

    grades = grade_all(open_sandbox, broken)
    assert len(grades) == 164
    assert [name for name, grade in grades.items() if grade.is_solved] == []
    # They fail by what they return, and not because they could not be run.
    assert [name for name, grade in grades.items() if "raised" in str(grade.problem)] == []
