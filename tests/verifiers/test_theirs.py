"""Environments by the authors of verifiers: those of the tests in its source distribution, which is fetched from the
package index. They are added, played by a script, evaluated and trained on."""

import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from moonmill import Message, Status, ToolCall
from moonmill.envs.adapters.verifiers.added import VERSIONS, find
from tests.integration.conftest import POLICY, Cli, assert_accounted_for, steps, write_config
from tests.verifiers.playing import known_as, play, tasks_of

MODULES = ("echo_v1", "echo_tool_v1", "counter_tool_v1", "echo_user_sim_v1", "duet_v1")
IDS = tuple(module.replace("_", "-") for module in MODULES)
"""A single turn, a tool, a tool with a state, a user that the environment plays, two agents."""
PROJECT = f"""
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "environments-of-verifiers"
version = "1.0"
[tool.setuptools]
py-modules = {list(MODULES)}
"""


@pytest.fixture(scope="module", autouse=True)
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("theirs")
    source = f"verifiers=={VERSIONS[0]}"
    fetch = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "verifiers", "--dest", folder, source]
    subprocess.run([sys.executable, *fetch], check=True, timeout=300)
    with tarfile.open(next(folder.glob("verifiers-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    fixtures = next(folder.glob("verifiers-*/tests/v1/fixtures"))
    (fixtures / "pyproject.toml").write_text(PROJECT)
    there = find("moonmill-sums")
    assert there is not None, "run `make test-verifiers`, which adds it"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        add = ["-m", "moonmill", "envs", "add", f"verifiers:{IDS[0]}", "--from", fixtures]
        add += ["--dir", Path(there.python).parents[1]]
        subprocess.run([sys.executable, *add], check=True, timeout=300)
        first = find(IDS[0])
        assert first is not None
        for other in IDS[1:]:
            known_as(replace(first, id=other))
        yield


def obeying(messages: Sequence[Message]) -> Message | str:
    """Does as it is told by each of them."""
    asked = next((m.content for m in messages if m.role == "user"), "")
    said = [m for m in messages if m.role == "tool"]
    if "`back`" in asked and not said:
        return _calling(messages, "echo_back", {"message": "hello world"})
    if "`bump`" in asked and len(said) < 3:
        return _calling(messages, "counter_bump", {})
    return asked.rpartition("phrase: ")[2] if "phrase: " in asked else messages[-1].content


def _calling(messages: Sequence[Message], tool: str, arguments: dict[str, object]) -> Message:
    return Message("assistant", tool_calls=(ToolCall(f"call-{len(messages)}", tool, arguments),))


@pytest.mark.parametrize("id", IDS)
def test_who_does_as_told_gets_the_whole_reward_and_who_does_not_gets_none(id: str) -> None:
    tasks = tasks_of(f"verifiers:{id}", "all", 1)
    [right] = play(f"verifiers:{id}", tasks, obeying)
    [wrong] = play(f"verifiers:{id}", tasks, lambda messages: "no")
    assert (right.status, right.reward, right.error) == (Status.FINISHED, 1.0, None)
    assert (wrong.status, wrong.reward, wrong.error) == (Status.FINISHED, 0.0, None)


def test_they_are_evaluated(moonmill: Cli) -> None:
    envs = [f"verifiers:{one}" for one in IDS]
    done = moonmill("eval", *envs, "--model", POLICY, "--tasks", "1", "--samples", "2")
    assert done.returncode == 0, done.stderr
    assert all(env in done.stdout for env in envs)


@pytest.mark.parametrize("id", [one for one in IDS if one != "counter-tool-v1"])
def test_they_are_trained_on(id: str, tmp_path: Path, moonmill: Cli) -> None:
    changes = (f"env.id=verifiers:{id}", "eval.tasks=0", "train.steps=20", "learner.batch_rollouts=2")
    done = moonmill("train", write_config(tmp_path), *(part for change in changes for part in ("--set", change)))
    assert done.returncode == 0, done.stderr
    assert_accounted_for(tmp_path / "run")
    assert steps(tmp_path / "run")[-1].version == 20
