"""What becomes of an episode whose sandbox fails, and that nothing is left of one, however it ends."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from moonmill import Message, Rollout, Status, StopReason, reward, tool
from moonmill.config import SandboxConfig
from moonmill.envs import SandboxService, sandbox_host
from moonmill.errors import ConfigError
from moonmill.sandboxes import SandboxError, SandboxLimits, SandboxSpec
from tests.envs.parts import OneTask, call, says
from tests.envs.providers import Refusing
from tests.envs.test_sandbox_env import Env, answers, ended, episode, play, until

KILL = "kill -9 $PPID"
"""In a shell of an `unsafe-subprocess`: the end of the supervisor, and so of the sandbox."""


@pytest.fixture
def service() -> Iterator[SandboxService]:
    """One whose sandboxes can be killed."""
    with SandboxService(SandboxConfig(provider="unsafe-subprocess")) as service:
        yield service


# One that is lost: never an answer, and never a reward


@pytest.mark.parametrize("name", ["sh", "ash"])
def test_one_that_is_lost_in_a_tool_fails_the_rollout(service: SandboxService, name: str) -> None:
    rollout = play(Env, call(name, text=KILL), call(name, text="echo still here"))
    assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert answers(rollout) == []
    assert "sandbox is gone" in (rollout.error or "")


@pytest.mark.parametrize("name", ["sh", "ash"])
def test_a_tool_that_catches_the_loss_changes_nothing(service: SandboxService, name: str) -> None:
    class Careless(Env):
        @tool
        def sh(self, text: str) -> str:
            try:
                return self.sandbox.exec(["sh", "-c", text]).stdout
            except SandboxError as e:
                return f"sorry: {e}"

        @tool
        async def ash(self, text: str) -> str:
            try:
                return (await self.sandbox.aio.exec(["sh", "-c", text])).stdout
            except Exception as e:
                raise ValueError("sorry") from e

    rollout = play(Careless, call(name, text=KILL))
    assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert answers(rollout) == []


def test_a_loss_in_a_reward_is_not_0(service: SandboxService) -> None:
    class Graded(Env):
        @reward
        def correct(self, rollout: Rollout) -> float:
            with self.open_sandbox() as fresh:
                try:
                    return float(fresh.exec(["sh", "-c", KILL]).returncode == 0)
                except Exception:
                    return 0.0

    rollout = play(Graded)
    assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert rollout.rewards == {}


def test_all_calls_that_wait_are_told_of_a_loss_at_once(service: SandboxService) -> None:
    start = time.monotonic()
    rollout = play(Env, says(call("ash", "a", text="sleep 50"), call("ash", "b", text=f"sleep 0.2; {KILL}")))
    assert rollout.stop_reason is StopReason.SANDBOX_ERROR
    assert time.monotonic() - start < 10


def test_a_handle_says_that_its_sandbox_is_lost(service: SandboxService) -> None:
    class Asking(Env):
        @tool
        def look(self) -> str:
            try:
                self.sandbox.exec(["sh", "-c", KILL])
            finally:
                lost.append(self.sandbox.lost)
            return ""

    lost: list[str] = []
    play(Asking, call("look"))
    assert "gone" in lost[0]


def test_a_lifetime_ends_a_sandbox(service: SandboxService) -> None:
    class Short(Env):
        sandbox = SandboxSpec(limits=SandboxLimits(lifetime=0.5))

    rollout = play(Short, call("sh", text="sleep 50"))
    assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert "lifetime" in (rollout.error or "")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"max_open": 0}, r"sandbox\.max_open: expected a whole number of at least 1, got 0"),
        ({"prewarm": -1, "open_timeout": 0}, r"sandbox\.prewarm: .* got -1; sandbox\.open_timeout: .* got 0"),
        ({"provider": "dokcer"}, r"sandbox\.provider: there is no provider 'dokcer': did you mean docker\?"),
        ({"provider": 5}, r"sandbox\.provider: expected text, got 5"),
    ],
)
def test_a_config_that_cannot_be_is_refused_at_once(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SandboxService(SandboxConfig(**given))


# Providers that fail


def played(provider: str, *turns: Any, factory: Any = Env, **options: Any) -> Rollout:
    with SandboxService(SandboxConfig(provider=provider, **options)):
        return play(factory, *turns)


def test_a_host_that_does_not_allow_it_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with SandboxService(SandboxConfig(provider="tests.envs.providers:Refusing")):
        for _ in range(2):
            rollout = play(Env)
            assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
            assert rollout.error == "user namespaces are not allowed here: allow them"
        monkeypatch.setattr(Refusing, "allowed", True)
        assert play(Env).status is Status.FINISHED


def test_one_that_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_host, "_START_SECONDS", 0.3)
    rollout = played("tests.envs.providers:Starting")
    assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert rollout.error == "tests.envs.providers:Starting was not ready in 0.3 s"


def test_one_that_starts_for_ever_does_not_hold_up_the_end() -> None:
    rollouts: list[Rollout] = []
    thread = threading.Thread(target=lambda: rollouts.append(play(Env)))
    start = time.monotonic()
    with SandboxService(SandboxConfig(provider="tests.envs.providers:Starting")) as service:
        thread.start()
        until(lambda: service.figures().waiting == 1)
    thread.join(10)
    assert time.monotonic() - start < 5
    assert ended(rollouts[0]) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)


def test_what_a_provider_should_not_raise_is_its_failure() -> None:
    rollout = played("tests.envs.providers:Odd")
    assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert "the provider tests.envs.providers:Odd raised ZeroDivisionError: odd (" in (rollout.error or "")


def test_one_that_never_has_a_sandbox_is_not_waited_for_for_ever() -> None:
    start = time.monotonic()
    rollout = played("tests.envs.providers:Hanging", open_timeout=0.3)
    assert ended(rollout) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert "could be made in 0.3 s" in (rollout.error or "")
    assert time.monotonic() - start < 5


def test_a_sandbox_that_cannot_be_taken_away_costs_no_reward_but_is_counted() -> None:
    class Graded(Env):
        @reward
        def correct(self, rollout: Rollout) -> float:
            return 1.0

    with SandboxService(SandboxConfig(provider="tests.envs.providers:Unclosable")) as service:
        rollout = play(Graded)
        assert ended(rollout) == (Status.FINISHED, StopReason.ANSWERED, 1.0)
        assert service.figures().failed == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.envs.nowhere:Provider", "tests.envs.nowhere:Provider cannot be had: ModuleNotFoundError"),
        ("tests.envs.providers:Nothing", "cannot be had: AttributeError"),
        ("tests.envs.providers:nothing", "which has no __aenter__, __aexit__, enforces, require, open"),
    ],
)
def test_a_name_that_is_no_providers_is_told(name: str, said: str) -> None:
    service = SandboxService(SandboxConfig(provider=name))
    with pytest.raises(ConfigError, match=r"^sandbox\.provider: ") as refused:
        service.check(SandboxSpec())
    assert said in str(refused.value)


def test_when_the_service_ends_all_who_wait_are_told(service: SandboxService) -> None:
    rollouts: list[Rollout] = []
    thread = threading.Thread(target=lambda: rollouts.append(play(Env, call("sh", text="sleep 50"))))
    thread.start()
    until(lambda: service.figures().in_use == 1)
    time.sleep(0.3)
    service.close()
    thread.join(10)
    assert ended(rollouts[0]) == (Status.FAILED, StopReason.SANDBOX_ERROR, None)
    assert play(Env).status is Status.FINISHED  # it starts again


# What is left


def test_code_that_was_left_behind_loses_its_sandbox_at_once(service: SandboxService) -> None:
    free, told = threading.Event(), []

    class Stuck(Env):
        max_seconds = 0.3

        @tool
        def block(self) -> str:
            free.wait(20)
            try:
                self.sandbox.exec(["true"])
            except BaseException as e:
                told.append(type(e).__name__)
            return ""

    rollout = play(Stuck, call("block"))
    assert (rollout.status, rollout.reward) == (Status.TRUNCATED, None)
    assert service.figures().in_use == 0
    free.set()
    until(lambda: bool(told))


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_after_the_end_no_sandbox_is_opened_any_more(service: SandboxService, in_a_thread: bool) -> None:
    free, told = threading.Event(), []

    class Stuck(OneTask):
        max_seconds = 0.3

        def open_late(self) -> str:
            free.wait(20)
            try:
                self.open_sandbox(SandboxSpec()).__enter__()
            except BaseException as e:
                told.append(type(e).__name__)
            return ""

        @tool
        def block(self) -> str:
            if not in_a_thread:
                return self.open_late()
            threading.Thread(target=self.open_late).start()
            return ""

    play(Stuck, call("block"))
    free.set()
    until(lambda: bool(told))
    assert told == ["EnvCodeError"]
    assert service.figures().in_use == 0


def children() -> set[str]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True)
    alive = set(found.stdout.split())
    return {pid for pid in alive if Path(f"/proc/{pid}").exists()}


def test_of_many_episodes_at_once_nothing_is_left() -> None:
    class Graded(Env):
        @reward
        def correct(self, rollout: Rollout) -> float:
            with self.open_sandbox() as fresh:
                fresh.write_file("f", self.sandbox.read_file("f"))
                return float(fresh.exec(["cat", "f"]).stdout == "a\n")

    async def main(count: int) -> list[Rollout]:
        rollouts: list[Rollout] = []

        async def one(turn: Message) -> None:
            rollouts.append(await episode(Graded, turn))

        async with anyio.create_task_group() as group:
            for number in range(count):
                text = "echo a > f; sleep 100 & setsid sleep 100 & true"
                group.start_soon(one, says(call(("sh", "ash")[number % 2], text=text)))
        return rollouts

    with SandboxService(SandboxConfig(max_open=16)) as service:
        anyio.run(main, 2)
        threads, files, below = threading.active_count(), open_files(), children()
        rollouts = anyio.run(main, 50)
        assert [ended(r) for r in rollouts] == [(Status.FINISHED, StopReason.ANSWERED, 1.0)] * 50
        figures = service.figures()
        assert (figures.in_use, figures.waiting, figures.created, figures.failed) == (0, 0, 104, 0)
        until(lambda: children() <= below)
        gc.collect()
        until(lambda: open_files() <= files)
        # One for each episode that there was at once is kept for the next.
        assert threading.active_count() <= threads + 50
    until(lambda: "moonmill-sandboxes" not in {thread.name for thread in threading.enumerate()})


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_environment_without_one_starts_nothing() -> None:
    with SandboxService():
        assert play(OneTask).status is Status.FINISHED
        assert "moonmill-sandboxes" not in {thread.name for thread in threading.enumerate()}


def script(tmp_path: Path, text: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "script.py").write_text(f"{SCRIPT}\n{text}")
    start = time.monotonic()
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert time.monotonic() - start < 20
    return done


SCRIPT = """
import os, signal, sys, threading, time
from moonmill import MultiTurnEnv, Task
from moonmill.sandboxes import SandboxSpec, SandboxUnavailableError

class Env(MultiTurnEnv):
    sandbox = SandboxSpec()
    def tasks(self, split):
        yield Task("go")

env = Env()
env.reset()
"""


def test_a_script_that_closes_nothing_ends_and_leaves_nothing(tmp_path: Path) -> None:
    done = script(tmp_path, 'print(env.sandbox.exec(["sh", "-c", "sleep 987654 & echo started"]).stdout)')
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "started", "")
    until(lambda: not processes_with("987654"))


def test_ctrl_c_ends_the_waiting_and_the_sandbox_goes_on(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        """
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background of a shell
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    env.sandbox.exec(["sleep", "987653"])
except KeyboardInterrupt:
    print("stopped", time.monotonic() - start < 3)
print(env.sandbox.exec(["echo", "goes on"]).stdout)
""",
    )
    assert done.stdout.split("\n")[:2] == ["stopped True", "goes on"], done.stderr
    until(lambda: not processes_with("987653"))


def test_a_forked_process_has_none_of_its_parents_and_gets_its_own(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        """
if os.fork() == 0:
    try:
        env.sandbox.exec(["true"])
    except SandboxUnavailableError as e:
        print(e, flush=True)
    own = Env()
    own.reset()
    print(own.sandbox.exec(["echo", "own"]).stdout, flush=True)
    own.close()
    os._exit(0)
os.wait()
print(env.sandbox.exec(["echo", "goes on"]).stdout)
""",
    )
    assert done.stdout.split("\n") == [
        "a forked process has none of its parent's sandboxes",
        *("own", "", "goes on", "", ""),
    ], done.stderr


def processes_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found
