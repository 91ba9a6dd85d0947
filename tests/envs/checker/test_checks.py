"""Each check finds what it is there for, in an environment in which nothing else is wrong."""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moonmill import MultiTurnEnv, Rollout, Task, list_envs, reward, tool
from moonmill.envs import Endpoint, ForeignEnv, Outcome
from moonmill.envs.checker import CHECKS, Finding, Report, check, check_env, leaks, subject

HERE = __file__
_kept: list[Any] = []


class Sound(MultiTurnEnv):
    """Nothing is wrong with it."""

    reward_bounds = (0.0, 1.0)

    def tasks(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            number = 2 * rng.randint(0, 10**6) + (split == "eval")
            yield Task(f"say {number}", answer=number)

    @tool
    def look(self, closely: bool = False) -> str:
        """Look.

        Args:
            closely: or not
        """
        return self.seen()

    def seen(self) -> str:
        """What a look shows: the place for most of what can be wrong."""
        return str(self.rng.random())

    @reward
    def right(self, rollout: Rollout) -> float:
        return float(rollout.final_number() == self.task.answer)


def findings_of(report: Report, check: str) -> list[Finding]:
    """Those of `check`, which are all there are."""
    assert {finding.check for finding in report.findings} == {check}, list(map(str, report.findings))
    assert all(finding.advice for finding in report.findings)
    return list(report.findings)


def only_finding(env: Any, check: str, **args: Any) -> Finding:
    [finding] = findings_of(check_env(env, **args), check)
    return finding


def test_nothing_is_found_in_a_sound_environment() -> None:
    before = random.getstate()
    report = check_env(Sound)
    assert random.getstate() == before
    assert (report.ok, report.findings, report.skipped) == (True, (), {}), list(map(str, report.findings))
    assert report.passed == tuple(CHECKS)
    assert report.env == "Sound"
    figures = report.figures
    assert figures.reset_ms is not None
    assert figures.step_ms is not None
    assert figures.tasks_per_second is not None


def test_made() -> None:
    class Broken(Sound):
        def __init__(self) -> None:
            raise RuntimeError("no data")

    report = check_env(Broken)
    [finding] = findings_of(report, "made")
    assert "its constructor raised RuntimeError: no data" in finding.what
    assert not report.ok
    assert report.skipped.keys() == CHECKS.keys() - {"made"}
    assert "is no MultiTurnEnv" in only_finding(lambda: 3, "made").what


def test_signatures() -> None:
    class Short(Sound):
        """It lacks an argument."""

        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
            return super().reset(seed=seed)

    finding = only_finding(Short, "signatures")
    assert "Short.reset cannot be called as it is" in finding.what
    assert finding.advice == "write `def reset(self, *, seed=None, options=None)`"
    assert finding.where.startswith(f"{HERE}:")


def test_documentation() -> None:
    class Silent(Sound):
        @tool
        def go(self, where: str) -> str:
            return self.seen()

        @tool
        def stay(self, long: int) -> str:  # noqa: D417
            """Stay.

            Args:
                lnog: how long
            """
            return self.seen()

    said = [finding.what for finding in findings_of(check_env(Silent), "documentation")]
    assert said == [
        "Silent has no docstring, and `moonmill envs list` shows its first line",
        "the tool go has no description, and it is all the model knows of it",
        "the tool go does not say what where is",
        "the docstring of the tool stay explains 'lnog', which is no parameter of it",
        "the tool stay does not say what long is",
    ]
    assert check_env(Silent).ok


class Tree(msgspec.Struct):
    """Has branches."""

    branches: "list[Tree]" = []


def test_schemas() -> None:
    class Deep(Sound):
        """It takes a tree."""

        @tool
        def plant(self, tree: Tree) -> str:
            """Plant.

            Args:
                tree: what to plant
            """
            return self.seen()

    assert "refers to itself" in only_finding(Deep, "schemas").what


def test_tasks() -> None:
    class Unwritable(Sound):
        """Its answer cannot be written down."""

        def tasks(self, split: str) -> Iterator[Task]:
            yield Task("say it", answer=object())

    class Empty(Sound):
        """It asks for nothing."""

        def tasks(self, split: str) -> Iterator[Task]:
            yield Task(" ", answer=split)

    for finding in findings_of(check_env(Unwritable), "tasks"):
        assert "cannot be written down" in finding.what
        assert finding.where.startswith(f"{HERE}:")
    assert only_finding(Empty, "tasks").what == "task train-0 has an empty prompt"


def test_a_missing_split_is_a_warning() -> None:
    class TrainAlone(Sound):
        """It has no eval."""

        def tasks(self, split: str) -> Iterator[Task]:
            if split == "train":
                yield Task("say it", answer=1)

    report = check_env(TrainAlone)
    [finding] = findings_of(report, "tasks")
    assert (finding.level, finding.what) == ("warning", "there are no tasks in the split 'eval'")
    assert report.ok


def test_splits() -> None:
    class Leaky(Sound):
        """What is held out is trained on."""

        def tasks(self, split: str) -> Iterator[Task]:
            rng = self.task_rng(split)
            while True:
                yield Task(f"say {rng.randint(0, 20)}")

    finding = only_finding(Leaky, "splits")
    assert (finding.level, finding.where.partition(":")[0]) == ("error", HERE)
    assert finding.what.startswith("100 of the first 100 tasks of `eval` are among the first 100 of `train`")


def test_a_seed_that_the_author_gives_makes_a_task_another_problem() -> None:
    class Seeded(Sound):
        """Its prompt does not tell the problem."""

        given = True

        def tasks(self, split: str) -> Iterator[Task]:
            rng = self.task_rng(split)
            while True:
                yield Task("say it", seed=rng.randint(1, 10**9) if self.given else 0)

    class FilledIn(Seeded):
        """Its tasks are one."""

        given = False

    assert check_env(Seeded, checks=["splits"]).findings == ()
    assert "the task's answer, info or seed" in only_finding(FilledIn, "splits", checks=["splits"]).advice


def test_stability() -> None:
    class Unstable(Sound):
        """It counts for all of the class."""

        made = 0

        def tasks(self, split: str) -> Iterator[Task]:
            while True:
                Unstable.made += 1
                yield Task(f"{split} {Unstable.made}", answer=split)

    finding = only_finding(Unstable, "stability")
    assert "task train-0 differs" in finding.what
    assert "train 1" in finding.value


def test_prompts() -> None:
    class Cramped(Sound):
        """Its prompt is longer than its episode."""

        max_tokens = 10

    assert "is longer than max_tokens (10)" in only_finding(Cramped, "prompts").what

    class Chatty(Sound):
        """Its prompt is a book."""

        system_prompt = "word " * 5000

    assert only_finding(Chatty, "prompts").level == "warning"


def test_episodes() -> None:
    class Fragile(Sound):
        """It does not bear an answer."""

        def step(self, action: Any) -> Any:
            if not action.tool_calls:
                raise KeyError(action.content)
            return super().step(action)

    finding = only_finding(Fragile, "episodes")
    assert "step raised KeyError" in finding.what
    assert finding.where.startswith(f"{HERE}:")

    class Mute(Sound):
        """It answers calls with a text."""

        def step(self, action: Any) -> Any:
            _, reward, terminated, truncated, info = super().step(action)
            return "seen", reward, terminated, truncated, info

    assert "not answered one by one" in only_finding(Mute, "episodes").what


def test_a_tool_that_raises_at_what_its_schema_allows_is_a_warning() -> None:
    class Careless(Sound):
        """It divides."""

        def seen(self) -> str:
            return str(1 // 0)

    finding = only_finding(Careless, "episodes")
    assert finding.level == "warning"
    assert finding.what == "the tool look raised ZeroDivisionError at arguments that its schema allows"
    assert finding.where.startswith(f"{HERE}:")
    assert "look({" in finding.value


def test_a_fault_shows_the_call_that_raised() -> None:
    class Careless(Sound):
        """Two of its tools look things up."""

        @tool
        def find(self, word: str) -> str:
            """Find.

            Args:
                word: what is looked for
            """
            return {}[f"find {word}"]

        @tool
        def fetch(self, word: str) -> str:
            """Fetch.

            Args:
                word: what is fetched
            """
            return {}[f"fetch {word}"]

    found = findings_of(check_env(Careless), "episodes")
    tools = [finding.what.split()[2] for finding in found]
    assert sorted(tools) == ["fetch", "find"]
    for name, finding in zip(tools, found, strict=True):
        assert finding.value.startswith(f"{name}({{'word': ")
        assert f": '{name} " in finding.value


@pytest.mark.parametrize(("value", "level"), [(7.0, "error"), (float("nan"), "error"), (None, "warning")])
def test_rewards(value: float | None, level: str) -> None:
    class Generous(Sound):
        """It pays what it should not."""

        @reward
        def right(self, rollout: Rollout) -> Any:
            return value

    finding = only_finding(Generous, "rewards")
    assert (finding.level, f"returned {value}" in finding.what) == (level, True)


def test_scores() -> None:
    class Worthless(Sound):
        """It pays nothing."""

        def right(self, rollout: Rollout) -> float:
            return 0.0

    assert "has no @reward method" in only_finding(Worthless, "scores").what

    class Rare(Worthless):
        @tool
        def win(self, word: str) -> str:
            """Win.

            Args:
                word: the right one
            """
            if word == "of a million":
                self.finish(1.0)
            return "no"

    assert check_env(Rare, checks=["scores"]).findings == ()

    class Stepping(Worthless):
        """Its turns are worth what it says."""

        def step(self, action: Any) -> Any:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(self.task.answer == -1), terminated, truncated, info

    assert check_env(Stepping, checks=["scores"]).findings == ()


def _python() -> float:
    return random.random()


def _numpy() -> float:
    return float(__import__("numpy").random.rand())


@pytest.mark.parametrize(("draw", "library"), [(_python, "random"), (_numpy, "numpy")])
def test_randomness(draw: Callable[[], float], library: str) -> None:
    class Shared(Sound):
        """It draws from what all share."""

        def seen(self) -> str:
            return str(draw())

    finding = only_finding(Shared, "randomness", checks=["randomness"])
    assert f"those of {library}" in finding.what
    assert finding.where == f"{HERE}:{draw.__code__.co_firstlineno + 1}"


def test_randomness_that_is_put_back() -> None:
    class Sly(Sound):
        """It draws, and puts back what it drew from."""

        def seen(self) -> str:
            state = random.getstate()
            drawn = str(random.random())
            random.setstate(state)
            return drawn

    assert "depends on the random numbers" in only_finding(Sly, "randomness").what


def test_determinism() -> None:
    class Clock(Sound):
        """It tells the time."""

        def seen(self) -> str:
            return str(time.perf_counter_ns())

    finding = only_finding(Clock, "determinism")
    assert "turn 1 differs" in finding.what
    assert finding.value.count("look") >= 1


def test_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        "from moonmill import MultiTurnEnv, Task, tool, reward\n\n\n"
        "class Names(MultiTurnEnv):\n"
        '    """It goes through a set."""\n\n'
        "    def tasks(self, split):\n"
        "        yield Task(f'{split} of {set(map(str, range(50)))}')\n\n"
        "    @reward\n"
        "    def nothing(self, rollout):\n"
        "        return 0.0\n"
    )
    (tmp_path / "names.py").write_text(code)
    finding = only_finding("names.py:Names", "processes")
    assert "another process makes another task: task train-0 differs" in finding.what
    (tmp_path / "sorted_names.py").write_text(code.replace("{set(", "{sorted(").replace("))}'", "))}'"))
    assert check_env("sorted_names.py:Names", checks=["processes"]).findings == ()


def test_interleaving() -> None:
    class Crossed(Sound):
        """Its state is the class's."""

        looks: list[int] = []

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.looks.clear()
            return super().reset(seed=seed, options=options)

        def seen(self) -> str:
            self.looks.append(1)
            return str(len(self.looks))

    assert "because another went on beside it" in only_finding(Crossed, "interleaving").what


def test_reset() -> None:
    class Forgetful(Sound):
        """It changes what its constructor was given."""

        def __init__(self, looks: list[int]) -> None:
            self.looks = looks

        def seen(self) -> str:
            self.looks.append(1)
            return str(len(self.looks))

    finding = only_finding(lambda: Forgetful([]), "reset")
    assert "after a second `reset`" in finding.what


def test_recording() -> None:
    class Particular(Sound):
        """It wants a tuple."""

        def tasks(self, split: str) -> Iterator[Task]:
            yield Task(split, answer=(1, 2))

        @reward
        def right(self, rollout: Rollout) -> float:
            return float(isinstance(self.task.answer, tuple))

    assert "plays otherwise once it has been in a log" in only_finding(Particular, "recording").what


def _thread() -> None:
    threading.Thread(target=time.sleep, args=(3,), daemon=True).start()


def _descriptor() -> None:
    _kept.append(os.open(os.devnull, os.O_RDONLY))


def _process() -> None:
    _kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))


def _file() -> None:
    _kept.append(tempfile.mkdtemp())


@pytest.fixture
def tidied() -> Iterator[None]:
    yield
    for left in _kept:
        if isinstance(left, int):
            os.close(left)
        elif isinstance(left, str):
            os.rmdir(left)
        else:
            left.communicate(b"\n")
    _kept.clear()


@pytest.mark.usefixtures("tidied")
@pytest.mark.parametrize(
    ("leave", "kinds"),
    [
        (_thread, {"threads"}),
        (_descriptor, {"open files, sockets or pipes"}),
        (_process, {"open files, sockets or pipes", "processes"}),
        (_file, {"files"}),
    ],
)
def test_leaks(leave: Callable[[], None], kinds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_SETTLE_SECONDS", 0.1)

    class Untidy(Sound):
        """It leaves something behind."""

        def setup(self) -> None:
            leave()

    said = [finding.what for finding in findings_of(check_env(Untidy), "leaks")]
    assert said == [f"3 {kind} are left after 3 episodes that were closed" for kind in sorted(kinds)]


def test_what_is_made_once_is_no_leak() -> None:
    class Cached(Sound):
        """It keeps one open file for all."""

        def setup(self) -> None:
            if not _kept:
                _kept.append(os.open(os.devnull, os.O_RDONLY))

    try:
        assert check_env(Cached, checks=["leaks"]).findings == ()
    finally:
        os.close(_kept.pop())


def test_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_FEW_TASKS", 1e12)
    monkeypatch.setattr(check, "_SLOW_STEP_MS", 0.0)
    said = [finding.what for finding in findings_of(check_env(Sound), "speed")]
    assert said == [
        "tasks are made slowly, and a run asks for them one after the other",
        "a step takes long, though the player takes no time",
    ]


def test_a_check_alone_makes_those_that_it_needs() -> None:
    assert check_env(Sound, checks=["splits"]).passed == ("made", "signatures", "tasks", "splits")


def test_a_finding_says_what_where_the_value_and_what_to_do() -> None:
    said = str(Finding("error", "it is blue", "paint it", "sky.py:3", "#00f", check="colour"))
    assert said == "error: colour: it is blue (sky.py:3)\n  seen: #00f\n  to do: paint it"


def test_a_tool_that_does_not_come_back_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "EPISODE_SECONDS", 0.2)

    class Stuck(Sound):
        """Its tool hangs."""

        def seen(self) -> str:
            time.sleep(1.5)
            return ""

    finding = findings_of(check_env(Stuck, checks=["episodes"]), "episodes")[0]
    assert "it took longer than 0.2 s" in finding.what


def test_an_asynchronous_environment_is_checked_as_well() -> None:
    class Slow(Sound):
        """Its tool is async."""

        @tool
        async def wait(self) -> str:
            """Wait."""
            return self.seen()

    assert check_env(Slow).findings == ()


OTHERS = ("FrozenLake-v1", "Taxi-v4", "CartPole-v1", "Blackjack-v1")
KNOWN = (
    *(spec.id for spec in list_envs() if spec.id != "python-code-v0"),
    *(f"gymnasium:{game}" for game in OTHERS),
    "textarena:Mastermind-v0",
)


@pytest.mark.parametrize("env_id", KNOWN)
def test_the_environments_that_come_with_it_keep_all_of_it(env_id: str) -> None:
    report = check_env(env_id)
    assert report.findings == (), list(map(str, report.findings))


class Foreign(ForeignEnv):
    """A program plays it."""

    def tasks(self, split: str) -> Iterator[Task]:
        return Sound().tasks(split)

    def play(self, task: Task, model: Endpoint, seed: int) -> Outcome:
        return Outcome(1.0)


def test_what_a_program_plays_is_not_stepped() -> None:
    report = check_env(Foreign)
    assert report.findings == ()
    assert report.skipped["episodes"] == "its program, which alone can play it"
    assert {"made", "signatures", "tasks", "splits", "prompts", "speed"} <= set(report.passed)


def _torch() -> float:
    return float(__import__("torch").rand(1))


def test_randomness_of_torch() -> None:
    """The last one here: with torch in the process all others would take longer."""
    _torch()  # imported here, which takes as long as it takes
    test_randomness(_torch, "torch")
