"""Real runs of the real command line, on the shipped starter policy."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from moonmill.agents.processes import ServerProcess
from moonmill.config_io import load_config
from moonmill.jsonl import read_jsonl
from moonmill.trainer.engine_commands import engine_argv
from moonmill.trainer.records import Event, StepRecord
from moonmill.types import Rollout

ROOT = Path(__file__).parents[2]
DEADLINE = 240.0
"""Seconds that anything may take."""
POLICY = ROOT / "examples" / "calculator" / "policy"
CRASH_POINTS = "crash_points"
"""A property of a test: a line for each point at which it killed a process."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the crash points and what came of them."""
    lines = [
        f"{report.outcome:7} {line}"
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call"
        for line in dict(report.user_properties).get(CRASH_POINTS, [])
    ]
    if lines:
        terminalreporter.section(f"{len(lines)} crash points: run, what was killed, when")
        terminalreporter.write("\n".join([*lines, ""]))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """An engine for the runs of one config after another."""
    folder = tmp_path_factory.mktemp("engine")
    argv = engine_argv(load_config(write_config(folder)))
    process = ServerProcess("engine", argv, log_path=folder / "engine.log", start_timeout=DEADLINE)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(process):
        yield process


@pytest.fixture
def attached(tmp_path: Path, engine: ServerProcess) -> Path:
    """The same config on an engine that runs already, for tests of what is not the engine: a start takes seconds."""
    return write_config(tmp_path, f"urls: [{engine.base_url}]")


def write_config(folder: Path, engine: str = "max_batch: 16") -> Path:
    """A config of a run in `folder` that takes seconds: small batches, no evaluation."""
    path = folder / "small.yaml"
    path.write_text(
        f"""
env: {{id: calculator-v0}}
model: {{path: {POLICY}, max_length: 256}}
run_dir: {folder / "run"}
engine: {{{engine}}}
sampling: {{max_tokens: 32}}
algorithm: {{preset: sao, critic: {{lr: 2.0e-3, warmup_steps: 2}}}}
async: {{max_staleness: 2, max_concurrent: 16}}
learner: {{batch_rollouts: 8, lr: 1.0e-4}}
train: {{steps: 10, checkpoint_every: 4}}
"""
    )
    return path


Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def moonmill(tmp_path: Path) -> Cli:
    """Runs the command line to its end, in a folder of its own."""

    def run(*args: object, timeout: float = 240) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "moonmill", *map(str, args)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, check=False)

    return run


def start(config: Path, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """`moonmill train`, begun in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "moonmill", "train", str(config), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_steps(run: Path, count: int, trainer: "subprocess.Popen[str]", seconds: float = DEADLINE) -> None:
    wait_until(lambda: len(steps(run)) >= count, f"step {count}", trainer, seconds)


def wait_until(
    condition: Callable[[], bool],
    what: str,
    trainer: "subprocess.Popen[str] | None" = None,
    seconds: float = DEADLINE,
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert trainer is None or trainer.poll() is None, f"the trainer ended before {what}: {trainer.communicate()}"
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)


def assert_accounted_for(run: Path, *, unfinished_group: int = 0) -> None:
    """Every finished rollout was trained on exactly once, or dropped once with a reason.

    Where a run has failed, those of groups that were not complete are kept for its resumption; `unfinished_group` is
    how many members a group has.
    """
    rollouts = list(read_jsonl(run / "rollouts.jsonl", Rollout))
    members = Counter(r.group for r in rollouts)
    kept = Counter(r.id for r in rollouts if members[r.group] < unfinished_group)
    finished = Counter(r.id for r in rollouts)
    ended = Counter[str]()
    for record in read_jsonl(run / "steps.jsonl", StepRecord):
        ended.update(record.consumed)
        ended.update(d.rollout for d in record.dropped)
        assert all(d.reason for d in record.dropped)
    assert set(finished.values()) == {1}
    assert ended == finished - kept


def events(run: Path, kind: str) -> list[Event]:
    return [e for e in read_jsonl(run / "events.jsonl", Event) if e.kind == kind]


def assert_load_is_spread(run: Path) -> None:
    """Each of two engines was at work on a good part of all completions, as seen at each step."""
    at_work = [sum(s.in_flight[place] for s in steps(run)) for place in (0, 1)]
    assert min(at_work) > 0.3 * sum(at_work), at_work


def steps(run: Path) -> list[StepRecord]:
    return [s for s in read_jsonl(run / "steps.jsonl", StepRecord) if s.step is not None]


def as_json(result: "subprocess.CompletedProcess[str]") -> object:
    return msgspec.json.decode(result.stdout)
