"""Workers: what hangs or crashes in one is killed, and takes nothing else along."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import anyio
import pytest

from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import reward
from moonmill.envs.loop import Answer
from moonmill.envs.workers import WORKERS, WorkerPool, in_worker
from moonmill.errors import EnvCodeError, WorkerDiedError, WorkerTimeoutError
from moonmill.types import Rollout, Status
from tests.envs.parts import TASK, OneTask

JOBS = "tests.envs.worker_jobs"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(1)
    yield pool
    pool.close()


def call(pool: WorkerPool, name: str, *arguments: Any, limit: float = 30.0) -> Any:
    return pool.call(f"{JOBS}:{name}", *arguments, limit=limit)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while is_there(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_there(pid)


def test_a_call_is_answered_by_a_process_that_is_used_again(pool: WorkerPool) -> None:
    assert call(pool, "echo", 1, "é", [2.5, None], {"a": True}) == [1, "é", [2.5, None], {"a": True}]
    assert call(pool, "pid") == call(pool, "pid") != os.getpid()


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("fail", ("why",), "raised KeyError: 'why'"),
        ("nothing", (), "raised AttributeError: .*no attribute 'nothing'"),
        ("no_data", (), "raised TypeError: Encoding objects of type object is unsupported"),
        ("echo", (object(),), "cannot be called: TypeError"),
        ("take_memory", (), "raised MemoryError"),
    ],
)
def test_what_is_raised_is_told_and_the_next_call_is_answered(
    pool: WorkerPool, name: str, arguments: tuple[Any, ...], told: str
) -> None:
    with pytest.raises(EnvCodeError, match=told):
        call(pool, name, *arguments)
    assert call(pool, "echo") == []


def test_what_hangs_is_killed_at_its_limit_and_the_next_call_gets_another_process(pool: WorkerPool) -> None:
    before = call(pool, "pid")
    start = time.monotonic()
    with pytest.raises(WorkerTimeoutError, match=r"worker_jobs:hang took longer than 0.3 s, and was killed"):
        call(pool, "hang", limit=0.3)
    assert time.monotonic() - start < 5
    assert not is_there(before)
    assert call(pool, "pid") != before


def test_what_ends_its_process_is_told_and_the_next_call_gets_another(pool: WorkerPool) -> None:
    with pytest.raises(WorkerDiedError, match=r"worker_jobs:crash: its worker died \(status 3\)"):
        call(pool, "crash", 3)
    assert call(pool, "echo") == []


def test_one_that_was_killed_while_idle_is_replaced(pool: WorkerPool) -> None:
    before = call(pool, "pid")
    os.kill(before, signal.SIGKILL)
    assert wait_until_gone(before)
    assert call(pool, "pid") != before


def test_waiting_for_a_worker_counts_for_no_limit(pool: WorkerPool) -> None:
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(call(pool, "sleep", 0.4, limit=1.0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [0.4] * 4


def test_an_urgent_call_goes_ahead_of_those_that_wait(pool: WorkerPool) -> None:
    answers: SimpleQueue[Answer] = SimpleQueue()
    pool.begin(f"{JOBS}:sleep", (0.2,), 30, False, answers.put)
    for name, urgent in (("first", False), ("second", False), ("urgent", True)):
        pool.begin(f"{JOBS}:echo", (name,), 30, urgent, answers.put)
    given = [answers.get(timeout=60).given() for _ in range(4)]
    assert [answer for answer in given if answer != 0.2] == [["urgent"], ["first"], ["second"]]


def test_a_forked_process_gets_workers_of_its_own() -> None:
    code = f"""
import os
from moonmill.envs.workers import WORKERS
mine = WORKERS.call('{JOBS}:pid', limit=30)
if os.fork() == 0:
    print(WORKERS.call('{JOBS}:pid', limit=30) != mine, flush=True)
    os._exit(0)
os.wait()
print(WORKERS.call('{JOBS}:pid', limit=30) == mine)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_what_is_secret_to_us_is_not_there_and_what_is_printed_is_not_on_our_stdout(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    pool = WorkerPool(1)
    assert call(pool, "variable", "MY_API_KEY") is None
    pool.close()
    assert "to nobody" not in capfd.readouterr().out


def test_closing_ends_what_runs_and_leaves_no_process(tmp_path: Path) -> None:
    pool, note = WorkerPool(2), tmp_path / "pid"
    errors: list[BaseException] = []

    def hang() -> None:
        with pytest.raises(WorkerDiedError) as caught:
            call(pool, "hang", str(note))
        errors.append(caught.value)

    thread = threading.Thread(target=hang)
    thread.start()
    pid = _noted(note)
    pool.close()
    thread.join(10)
    assert len(errors) == 1
    assert not is_there(pid)


def test_it_ends_with_its_owner_though_that_is_killed_and_it_hangs(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"from moonmill.envs.workers import WORKERS; WORKERS.call('{JOBS}:hang', {str(note)!r}, limit=600)"
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-P", "-c", code], env={**os.environ, "PYTHONPATH": str(root)}) as owner:
        pid = _noted(note)
        assert is_there(pid)
        owner.kill()
    assert wait_until_gone(pid)


# Episodes


def play(env: type[OneTask]) -> Rollout:
    return anyio.run(lambda: EpisodeRunner("env", env, ScriptedAgent(lambda messages: "7")).run(TASK, id="r", seed=0))


def test_a_scorer_that_hangs_leaves_its_rollout_unscored() -> None:
    class Hanging(OneTask):
        @reward
        def right(self, rollout: Rollout) -> float | None:
            try:
                return float(in_worker(self, f"{JOBS}:hang", limit=0.3))
            except WorkerTimeoutError:
                return None

    rollout = play(Hanging)
    assert (rollout.status, rollout.reward, rollout.error) == (
        Status.FINISHED,
        None,
        "env: the reward 'right' returned None",
    )


def test_waiting_for_a_worker_counts_for_no_limit_of_the_episode() -> None:
    class Slow(OneTask):
        max_scoring_seconds = 0.3

        @reward
        def right(self, rollout: Rollout) -> float:
            return float(in_worker(self, f"{JOBS}:sleep", 0.7, limit=30))

    assert play(Slow).reward == 0.7


def test_an_episode_that_is_cancelled_takes_its_call_along(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    class Hanging(OneTask):
        @reward
        def right(self, rollout: Rollout) -> float:
            return float(in_worker(self, f"{JOBS}:hang", str(note), limit=600))

    async def leave() -> None:
        async with anyio.create_task_group() as group:
            runner = EpisodeRunner("env", Hanging, ScriptedAgent(lambda messages: "7"))
            group.start_soon(lambda: runner.run(TASK, id="r", seed=0))
            await anyio.to_thread.run_sync(_noted, note)
            group.cancel_scope.cancel()

    anyio.run(leave)
    assert wait_until_gone(int(note.read_text()))
    assert WORKERS.call(f"{JOBS}:echo", limit=30) == []


def _noted(note: Path) -> int:
    end = time.monotonic() + 60
    while not (note.exists() and note.read_text()):
        assert time.monotonic() < end, "it did not begin"
        time.sleep(0.02)
    return int(note.read_text())
