"""Grading: right submissions pass, wrong ones do not, and nothing a hostile one does makes it pass."""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from moonmill.envs.library.coding import grading
from moonmill.envs.library.coding.grading import CallTests, CheckTests, Grade, Grader
from moonmill.envs.library.coding.inside import encode
from moonmill.errors import ConfigError, EnvCodeError
from moonmill.sandboxes import SandboxUnavailableError
from tests.envs.conftest import OpenSandbox

MARK = "QXJ-7316"
"""Stands in what no submission may ever see."""
DOUBLE = CallTests(
    entry_point="solve",
    calls=tuple(encode([[n], {}]) for n in range(10)),
    wanted=tuple(encode(2 * n, as_equal=True) for n in range(10)),
    solution=f"def solve(n):\n    return 2 * n  # {MARK}\n",
)
IS_EVEN = CallTests(
    entry_point="solve",
    calls=tuple(encode([[n], {}]) for n in (3, 4, 8, 5, 7, 6)),
    wanted=tuple(encode(n % 2 == 0, as_equal=True) for n in (3, 4, 8, 5, 7, 6)),
    solution=f"def solve(n):\n    return n % 2 == 0  # {MARK}\n",
)
CHECKS = f"""
# {MARK}
def check(candidate):
    import random
    assert True, "of no account"
    assert candidate([3, 1], reverse=False) == [1, 3]
    assert candidate([], reverse=False) == []
    for _ in range(8):
        some = [random.randint(0, 99) for _ in range(random.randint(1, 9))]
        assert list(candidate(some, reverse=True)) == sorted(some)[::-1]
"""
SORTED = CheckTests(
    entry_point="put_in_order",
    preamble="""
from typing import List

def helper(x):
    return x

def put_in_order(items: List[int], reverse):
    "Put them in order."
""",
    checks=CHECKS,
    solution=f"def put_in_order(items, reverse):\n    return sorted(items, reverse=reverse)  # {MARK}\n",
)


@pytest.fixture
def grader(open_sandbox: OpenSandbox) -> Grader:
    return Grader(open_sandbox, (), ("moonmill",))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can wait for."""
    monkeypatch.setattr(grading, "SECONDS", 2)
    monkeypatch.setattr(grading, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(grading, "WALL_SECONDS", 3.0)


# Results


def test_the_solution_passes_all_tests(grader: Grader) -> None:
    assert grader.grade(DOUBLE, DOUBLE.solution) == Grade(10, 10)


def test_part_of_the_tests_can_be_passed(grader: Grader) -> None:
    grade = grader.grade(DOUBLE, "def solve(n):\n    return 2 * n if n < 7 else 0\n")
    assert grade == Grade(7, 10, "it gave another result than is wanted")
    assert (grade.share, grade.is_solved) == (0.7, False)


def test_a_call_that_raises_is_one_test_failed(grader: Grader) -> None:
    assert grader.grade(DOUBLE, "def solve(n):\n    return 2 * n * (1 // n) ** 0\n") == Grade(
        9, 10, "it raised ZeroDivisionError: integer division or modulo by zero"
    )


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def solve(n)\n", "it raised SyntaxError: "),
        ("", "it raised KeyError: "),
        ("def other(n): return 2 * n", "it raised KeyError: "),
        ("solve = 3", "it raised TypeError: "),
        ("import nothing_of_that_name", "it raised ModuleNotFoundError: "),
        ("def solve(n):\n    return 2 * n\n1 / 0", "it raised ZeroDivisionError: "),
        ("def solve():\n    return 0", "it raised TypeError: "),
        ("x = '\0'", "it raised "),
        ("\ud800", "it raised "),
        ("(" * 100_000, "it "),
        ("def solve(n):\n    return object()", "it raised NotPlainError: "),
        ("def solve(n):\n    return solve(n)", "it raised RecursionError: "),
        ("def solve(n):\n    l = []\n    l.append(l)\n    return l", "it raised RecursionError: "),
        ("class E(Exception):\n    def __str__(self): raise self\ndef solve(n):\n    raise E", "it raised E"),
    ],
)
def test_what_cannot_work_passes_nothing_and_is_told(grader: Grader, code: str, problem: str) -> None:
    grade = grader.grade(DOUBLE, code)
    assert (grade.passed, grade.total) == (0, 10)
    assert str(grade.problem).startswith(problem)


def test_the_same_code_gets_the_same_grade_though_it_depends_on_the_order_of_a_set(grader: Grader) -> None:
    code = "def solve(n):\n    return list({'a', 'b', 'c', str(n)})[0] > 'b'\n"
    assert len({grader.grade(IS_EVEN, code) for _ in range(5)}) == 1


def test_what_a_submission_prints_does_no_harm(grader: Grader) -> None:
    code = """
import os, sys
print("loading")
def solve(n):
    print("=1")
    os.write(1, b"=1")
    sys.stderr.write("x")
    return 2 * n
"""
    assert grader.grade(DOUBLE, code).is_solved


def test_the_programs_names_are_not_the_submissions_and_it_is_not_main(grader: Grader) -> None:
    code = """
if __name__ == "__main__":
    raise SystemExit
def encode(x):
    return 2 * x
def solve(n):
    return encode(n)
"""
    assert grader.grade(DOUBLE, code).is_solved


def test_annotations_and_dataclasses_work_as_in_a_module(grader: Grader) -> None:
    code = """
import typing
from dataclasses import dataclass
@dataclass
class Box:
    n: int
def solve(n: int) -> int:
    assert typing.get_type_hints(solve)["n"] is int
    assert Box.__annotations__["n"] is int
    return Box(2 * n).n
"""
    assert grader.grade(DOUBLE, code) == Grade(10, 10)


# Hostile submissions


HOSTILE = {
    "ends the process with success": """
import os
os._exit(0)
""",
    "leaves": """
import sys
sys.exit(0)
""",
    "leaves in a call": """
def solve(*args, **kwargs):
    raise SystemExit(0)
""",
    "ends the process in a call": """
import os
def solve(*args, **kwargs):
    os._exit(0)
""",
    "kills what it can": """
import os, signal
def solve(*args, **kwargs):
    os.kill(-1, signal.SIGKILL)
""",
    "crashes Python": """
import ctypes
def solve(*args, **kwargs):
    ctypes.string_at(0)
""",
    "equal to everything": """
class Equal:
    def __eq__(self, other):
        return True
    __lt__ = __gt__ = __le__ = __eq__
def solve(*args, **kwargs):
    return Equal()
""",
    "a number equal to everything": """
class Equal(int):
    def __eq__(self, other):
        return True
    def __int__(self):
        return 2
    def __repr__(self):
        return "2"
    __str__, __index__, __hash__ = __repr__, __int__, int.__hash__
def solve(*args, **kwargs):
    return Equal(-1)
""",
    "a list equal to everything": """
class Equal(list):
    def __eq__(self, other):
        return True
    def __iter__(self):
        return iter(())
def solve(*args, **kwargs):
    return Equal([-1])
""",
    "a text that breaks the line": """
def solve(*args, **kwargs):
    return "x\\n=0\\n=2\\n=4\\n"
""",
    "a value like a mark": """
def solve(*args, **kwargs):
    return {"int": "0x2"}
""",
    "an exception that breaks the line": """
def solve(*args, **kwargs):
    raise ValueError("\\n=0\\n=2\\n=4")
""",
    "says what it has not computed": """
import os
def solve(*args, **kwargs):
    for fd in range(3, 64):
        try:
            os.write(fd, b"=0\\n=1\\n" * 20)
        except OSError:
            pass
    return -1
""",
    "patches the interpreter": """
import builtins, json, sys
builtins.exec = builtins.compile = builtins.isinstance = lambda *args, **kwargs: True
json.dumps = lambda *args, **kwargs: "0"
sys.modules["__main__"].encode = lambda *args: "0"
def solve(*args, **kwargs):
    return 0
""",
    "patches its caller": """
import sys
frame = sys._getframe()
while frame:
    frame.f_globals["encode"] = lambda *args: "1"
    frame = frame.f_back
def solve(*args, **kwargs):
    return -1
""",
    "looks for the answers in memory": """
import gc
def solve(*args, **kwargs):
    for found in gc.get_objects():
        if isinstance(found, (dict, list)) and "QXJ" + "-7316" in repr(found):
            return found
    return -1
""",
    "looks for the answers in files": """
import os
def solve(*args, **kwargs):
    for top in ("/workspace", "/tmp", "/run", "/root", "/home", "/dev/shm", "/var"):
        for folder, _, files in os.walk(top):
            for name in files:
                try:
                    text = open(os.path.join(folder, name), errors="replace").read()
                except OSError:
                    continue
                if "QXJ" + "-7316" in text:
                    return text
    return -1
""",
    "looks for the answers in processes": """
import os
def solve(*args, **kwargs):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ", "fd/0", "fd/1", "fd/2", "fd/3", "fd/4"):
            try:
                fd = os.open("/proc/%s/%s" % (pid, name), os.O_RDONLY | os.O_NONBLOCK)
                text = os.read(fd, 1 << 20)
            except OSError:
                continue
            if b"QXJ" + b"-7316" in text:
                return text
    return -1
""",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("tests", [DOUBLE, IS_EVEN, SORTED], ids=["double", "is even", "checks"])
def test_a_trick_does_not_pass(grader: Grader, tests: CallTests | CheckTests, code: str) -> None:
    grade = grader.grade(tests, code.replace("solve", tests.entry_point))
    assert not grade.is_solved
    assert grade.share < 0.7  # Who always says the same is right at times.


def test_no_answer_goes_into_the_sandbox_of_a_submission() -> None:
    sent: list[str] = []

    class Box:
        def exec(self, argv: Sequence[str], *, input: str, **options: Any) -> Any:
            sent.append(json.dumps(argv) + input)
            raise SandboxUnavailableError("seen enough")

    class Opened(AbstractContextManager[Box]):
        def __enter__(self) -> Box:
            return Box()

        def __exit__(self, *error: object) -> None: ...

    tests = CallTests("solve", (encode([[17], {}]),), (encode("Eureka"),), "def eureka")
    grade = Grader(Opened, (), ()).grade(tests, "the submission")
    assert (grade.passed, grade.problem) == (0, "it was the end of its sandbox, twice before the last call")
    text, again = sent
    assert text == again, "another sandbox might not have been lost"
    assert "the submission" in text
    assert "[[17]" in text.replace("\\", "")
    assert "Eureka" not in text
    assert "def eureka" not in text


def test_what_is_left_behind_does_no_harm(grader: Grader) -> None:
    code = (
        "import atexit, os, threading, time\n"
        "atexit.register(lambda: time.sleep(1000))\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "if os.fork() == 0:\n    os.setsid(); time.sleep(1000)\n"
        "def solve(n):\n    return 2 * n\n"
    )
    begin = time.monotonic()
    assert grader.grade(DOUBLE, code).is_solved
    assert time.monotonic() - begin < 20


ENDLESS = {
    "loops": """
def solve(n):
    while True:
        pass
""",
    "sleeps": """
import time
def solve(n):
    time.sleep(1000)
""",
    "loops and catches": """
def solve(n):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
""",
    "loops and ignores": """
import signal
def solve(n):
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_PROF, 0)
    while True:
        pass
""",
    "writes": """
import os
def solve(n):
    while True:
        os.write(1, b"x" * 65536)
""",
    "forks": """
import os
def solve(n):
    while True:
        try:
            os.fork()
        except OSError:
            pass
""",
    "computes": """
def solve(n):
    return 10 ** 10 ** 10
""",
    "yields nothing": """
def solve(n):
    return (x for x in iter(int, 1) if x)
""",
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS.keys())
def test_what_does_not_end_is_ended_and_fails(grader: Grader, code: str) -> None:
    begin = time.monotonic()
    grade = grader.grade(DOUBLE, code)
    assert grade.passed == 0
    assert grade.problem is not None
    assert time.monotonic() - begin < 30


@pytest.mark.usefixtures("quick")
def test_one_call_that_loops_leaves_the_others_their_chance(grader: Grader) -> None:
    grade = grader.grade(DOUBLE, "def solve(n):\n    while n == 0: pass\n    return 2 * n\n")
    assert grade == Grade(9, 10, "it raised TimeoutError: it took longer than 0.3 s of processor time")


STEAL = """
import os, signal
for fd in range(3, 20):
    try:
        theirs = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
        os.write(fd, (os.read(theirs, 100) and b'["/usr/share/answers"]\\n'))
    except OSError:
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_the_grader_says_of_the_sandbox_cannot_be_taken_back(grader: Grader) -> None:
    for _ in range(10):
        assert grader.grade(DOUBLE, STEAL).passed == 0


FLOOD = """
import sys
def solve(n):
    say = sys._getframe(1).f_locals["say"]
    for _ in range(1 << 16):
        say("=" * {})
"""


@pytest.mark.parametrize(
    "code",
    [
        "def solve(n):\n    return 'x' * (300 << 20)",
        "def solve(n):\n    return [0] * (1 << 28)",
        FLOOD.format(1000),
        FLOOD.format(0),
    ],
    ids=["a long text", "a long list", "much text", "many lines"],
)
def test_too_much_is_bounded_here(grader: Grader, code: str) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        grade = grader.grade(DOUBLE, code)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grade.passed == 0
    assert peak < 64 << 20


# Checks


def test_the_reference_passes_its_checks_and_a_wrong_one_does_not(grader: Grader) -> None:
    assert grader.grade(SORTED, SORTED.solution) == Grade(10, 10)
    grade = grader.grade(SORTED, "def put_in_order(items, reverse):\n    return sorted(items)\n")
    assert 2 <= grade.passed < 10
    assert grade.total == 10


def test_what_a_problem_gives_is_there_without_being_repeated(grader: Grader) -> None:
    code = "def put_in_order(items: List[int], reverse):\n    return helper(sorted(items, reverse=reverse))\n"
    assert grader.grade(SORTED, code).is_solved


def test_checks_see_what_was_returned_in_its_own_type(grader: Grader) -> None:
    code = """
def put_in_order(items, reverse):
    found = sorted(items, reverse=reverse)
    return KIND(found) if reverse == WHERE else found
"""
    # An iterator is all that one of the checks makes a list of; to the others, no tuple is a list.
    assert grader.grade(SORTED, code.replace("KIND", "iter").replace("WHERE", "True")).is_solved
    assert grader.grade(SORTED, code.replace("KIND", "tuple").replace("WHERE", "False")).passed == 8


def test_checks_with_a_tolerance_take_what_is_near(grader: Grader) -> None:
    tests = CheckTests(
        "root",
        "import math\n",
        "def check(candidate):\n    for x in range(1, 9):\n        assert abs(candidate(x) ** 2 - x) < 1e-6\n",
        "def root(x):\n    return math.sqrt(x)\n",
    )
    newton = "def root(x):\n    y = x\n    for _ in range(30): y = (y + x / y) / 2\n    return y\n"
    assert grader.grade(tests, newton).is_solved
    assert not grader.grade(tests, newton.replace("30", "2")).is_solved


def test_checks_may_call_the_function_by_its_name(grader: Grader) -> None:
    tests = CheckTests(
        "f",
        "def f(x):\n    'Doc.'\n",
        "def check(candidate):\n    assert candidate(2) == f(2)\n    assert f(3) == 6\n",
        "def f(x):\n    return 0 if x == 0 else 2 + f(x - 1)\n",
    )
    assert grader.grade(tests, "def f(x):\n    return 2 * x\n").is_solved
    assert grader.grade(tests, "def f(x):\n    return 3 * x\n") == Grade(1, 2, "AssertionError: ")


def test_checks_that_take_too_long_on_a_result_are_failed(grader: Grader, quick: None) -> None:
    tests = CheckTests(
        "f", "", "def check(candidate):\n    assert sum(range(candidate(1))) == 0\n", "def f(x):\n    return x\n"
    )
    grade = grader.grade(tests, "def f(x):\n    return 10 ** 12\n")
    assert grade == Grade(0, 1, "its results are more than the checks can take")


def test_checks_that_do_not_hold_of_their_own_solution_are_the_environments_fault(grader: Grader) -> None:
    tests = CheckTests("f", "", "def check(candidate):\n    assert candidate(1) == 2\n", "def f(x):\n    return x\n")
    with pytest.raises(EnvCodeError, match="the checks of f do not hold of its own solution: AssertionError"):
        grader.grade(tests, "def f(x):\n    return 2\n")


# The sandbox


def test_a_sandbox_that_shows_the_answers_is_refused(open_sandbox: OpenSandbox) -> None:
    for paths, modules in ((("/usr/bin/python3",), ()), ((), ("json",))):
        with pytest.raises(ConfigError, match=r"the sandbox shows \[.*(python3|json).*\], where the answers are"):
            Grader(open_sandbox, paths, modules).grade(DOUBLE, DOUBLE.solution)


def test_a_sandbox_without_python_is_refused(open_sandbox: OpenSandbox) -> None:
    class Bare(AbstractContextManager[Any]):
        def __enter__(self) -> Any:
            self.opened = open_sandbox()
            box = self.opened.__enter__()
            run = box.exec

            class Box:
                def exec(self, argv: Sequence[str], **options: Any) -> Any:
                    return run(["python3-is-not-here", *argv[1:]], **options)

            return Box()

        def __exit__(self, *error: Any) -> None:
            self.opened.__exit__(*error)

    with pytest.raises(
        ConfigError, match=r"python3-is-not-here.*To grade, the sandbox needs a python3 of 3\.9 or newer"
    ):
        Grader(Bare, (), ()).grade(DOUBLE, DOUBLE.solution)
