"""The terminal environment, played by scripts in real sandboxes; some of them cheat."""

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import msgspec
import pytest

from moonmill.envs import SandboxService
from moonmill.envs.library.terminal import checking
from moonmill.envs.library.terminal.env import Terminal
from moonmill.envs.library.terminal.expert import demonstrate
from moonmill.envs.library.terminal.files import Entry
from moonmill.envs.library.terminal.problems import Wanted, generated_tasks
from moonmill.sandboxes import SandboxUnavailableError
from moonmill.types import Rollout, Status, StopReason, Task, ToolCall
from tests.envs.library.playing import experience, play, play_at_once, saying, tasks, told

ID = "terminal-v0"


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[SandboxService]:
    with SandboxService() as service:
        yield service


def drawn(family: str, level: int = 2) -> Task:
    return next(islice(generated_tasks(Random(0), "train", [level], [family]), 1))


def running(played: Task, command: str) -> Rollout:
    return play(ID, played, saying(ToolCall("1", "bash", {"command": command}), "Done."))


def expert(played: Task) -> str:
    arguments = demonstrate(played.messages()).tool_calls[0].arguments
    assert isinstance(arguments, dict)
    return str(arguments["command"])


# Episodes


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_expert_does_every_job_also_when_episodes_are_interleaved(split: str) -> None:
    played = tasks(ID, split, 8)
    rollouts = play_at_once(ID, played, demonstrate)
    assert [r.error for r in rollouts] == [None] * 8
    assert {(r.status, r.stop_reason, r.reward) for r in rollouts} == {(Status.FINISHED, StopReason.ANSWERED, 1.0)}
    assert {t.level for t in played} == {"1", "2", "3"}
    assert rollouts[0].metrics == {"as_wanted": 1.0, "superfluous_files": 0.0, "commands": 1.0}
    assert experience(play(ID, played[0], demonstrate)) == experience(rollouts[0])


@pytest.mark.parametrize("family", ["edit", "script"])
def test_who_does_nothing_gets_nothing(family: str) -> None:
    rollout = play(ID, drawn(family), lambda messages: "Done.")
    assert (rollout.status, rollout.reward) == (Status.FINISHED, 0.0)
    assert rollout.metrics["as_wanted"] < 1.0


def test_what_a_command_prints_is_told() -> None:
    played = drawn("count", level=1)
    rollout = running(played, "ls | sort; false")
    assert told(rollout) == ["\n".join([*sorted(played.info["files"]), "[exit code 1]"])]


def test_a_task_that_comes_from_a_log_is_played_as_well() -> None:
    played = msgspec.json.decode(msgspec.json.encode(drawn("script")), type=Task)
    assert isinstance(played.answer, dict)
    assert play(ID, played, demonstrate).reward == 1.0


# What does not pass


@pytest.mark.parametrize(
    "further",
    [
        "touch further.txt",
        "mkfifo pipe",
        "echo >> $(ls *.txt | head -n 1)",
        "f=$(ls *.txt | head -n 1); mv $f /tmp/x; ln -s /tmp/x $f",
        "f=$(ls *.txt | head -n 1); rm $f; mkfifo $f",
        "f=$(ls *.txt | head -n 1); truncate -s 20M $f",
        "f=$(ls *.txt | head -n 1); chmod 000 $f",
        "for i in $(seq 3000); do : > $i; done",
        "chmod 000 .",
    ],
)
def test_the_job_done_and_something_else_as_well_is_worth_nothing(further: str) -> None:
    played = drawn("count", level=1)
    rollout = running(played, f"{expert(played)}\n{further}")
    assert (rollout.status, rollout.reward, rollout.error) == (Status.FINISHED, 0.0, None)


def test_white_space_and_order_are_of_no_account_where_the_job_says_nothing_of_them() -> None:
    played = drawn("find")
    target = next(path for path, entry in played.answer.files.items() if entry.is_answer)
    assert (
        running(
            played, f"{expert(played)}\nsort -r {target} | sed 's/$/ /' > /tmp/x; cat /tmp/x - <<< '' > {target}"
        ).reward
        == 1.0
    )
    assert running(played, f"{expert(played)}\necho more >> {target}").reward == 0.0


def test_a_mode_that_is_not_the_wanted_one_is_worth_nothing() -> None:
    played = drawn("permissions")
    assert running(played, f'{expert(played)}\nchmod 777 "$(find . -type f | head -n 1)"').reward == 0.0
    renamed = drawn("rename")
    assert running(renamed, f"{expert(renamed)}\nfind . -type f -exec chmod 777 {{}} +").reward == 1.0


# What cannot be faked


def test_what_is_wanted_is_nowhere_in_the_sandbox() -> None:
    wanted = Wanted({"a.txt": Entry("here"), "a.out": Entry("only-the-grader-knows", is_answer=True)})
    played = Task("Guess what is to be in `a.out`.", wanted, info={"files": {"a.txt": "here"}})
    places = "/workspace /tmp /run /home /root /dev/shm /var /etc /proc/*/environ /proc/*/cmdline"
    rollout = running(played, f"grep -raswlE 'here' /workspace; grep -rasE 'only-the-[g]rader' {places}; true")
    assert told(rollout) == ["/workspace/a.txt"]
    assert (rollout.reward, rollout.metrics["as_wanted"]) == (0.0, 0.5)
    assert running(played, "printf only-the-grader-knows > a.out").reward == 1.0


def test_a_script_is_tried_out_where_nothing_that_the_model_left_is() -> None:
    played = drawn("script")
    script = played.answer.runs[0].script
    leave = f"(while :; do echo 1 > /tmp/left; sleep 0.01; done) &\n{expert(played)}"
    check = f"sed -i '1i [ -e /tmp/left ] && echo left' {script}"
    assert running(played, f"{leave}\n{check}").reward == 1.0


def test_a_script_that_knows_the_model_s_own_folder_alone_does_not_pass() -> None:
    played = drawn("script")
    rollout = running(
        played,
        f"{expert(played)}\nn=$(bash {played.answer.runs[0].script} .); echo echo $n > {played.answer.runs[0].script}",
    )
    printed = {run.printed for run in played.answer.runs}
    assert len(printed) > 1
    assert rollout.reward == 0.0


@pytest.mark.parametrize("body", ["yes", "kill -9 -1", ":(){ :|:& };:; wait"])
def test_a_hostile_script_is_worth_nothing_and_fails_nothing(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SECONDS", 1.0)
    played = drawn("script")
    rollout = running(played, f"echo '{body}' > {played.answer.runs[0].script}")
    assert (rollout.status, rollout.reward, rollout.error) == (Status.FINISHED, 0.0, None)


def test_a_sandbox_that_cannot_be_had_to_try_a_script_out_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(env: Terminal, files: Any) -> None:
        raise SandboxUnavailableError("there is none")

    monkeypatch.setattr(Terminal, "_open", refuse)
    rollout = play(ID, drawn("script"), demonstrate)
    assert (rollout.status, rollout.reward) == (Status.FAILED, None)
    assert "there is none" in str(rollout.error)


def test_a_script_that_ends_its_sandbox_is_worth_nothing_and_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def lose(*args: Any) -> bool:
        tries.append(1)
        raise SandboxUnavailableError("it is gone")

    monkeypatch.setattr(checking, "_prints", lose)
    rollout = play(ID, drawn("script"), demonstrate)
    assert (rollout.status, rollout.reward, len(tries)) == (Status.FINISHED, 0.0, 2)
