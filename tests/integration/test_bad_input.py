"""Ten commands with bad input: each says what is wrong, where, with the value and what to do, without a traceback."""

import socket
from pathlib import Path

import pytest

from tests.integration.conftest import Cli

BAD_ENV = """
from moonmill import MultiTurnEnv, Task, reward, tool

class Bad(MultiTurnEnv):
    def __init__(self, prompt="2+2", value=1.0):
        self.prompt = prompt
        self.value = float(value)

    def tasks(self, split):
        while True:
            yield Task(self.prompt)

    @tool
    def calculate(self, expression: str) -> str:
        return str(1 // 0)

    @reward
    def always(self, rollout):
        return self.value
"""


@pytest.fixture
def bad_env(tmp_path: Path) -> Path:
    path = tmp_path / "bad.py"
    path.write_text(BAD_ENV)
    return path


def refused(moonmill: Cli, *args: object, code: int = 2) -> str:
    result = moonmill(*args)
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert "internal error" not in result.stderr
    return result.stderr


def test_an_unknown_key_is_named_with_the_nearest_valid_one(moonmill: Cli, config: Path) -> None:
    error = refused(moonmill, "train", config, "--set", "learner.learning_rate=1e-4")
    assert "learner.learning_rate" in error
    assert "lr" in error


def test_a_wrong_type_is_named_with_its_path_and_value(moonmill: Cli, config: Path) -> None:
    error = refused(moonmill, "train", config, "--set", "train.steps=many")
    assert "train.steps" in error
    assert "many" in error


def test_a_missing_file_is_named(moonmill: Cli) -> None:
    assert "no-such.yaml" in refused(moonmill, "train", "no-such.yaml")


def test_an_unknown_env_is_named_with_the_nearest(moonmill: Cli, config: Path) -> None:
    error = refused(moonmill, "train", config, "--set", "env.id=calculater-v0")
    assert "calculater-v0" in error
    assert "calculator-v0" in error


def test_an_unknown_algorithm_is_named_with_those_there_are(moonmill: Cli, config: Path) -> None:
    error = refused(moonmill, "train", config, "--set", "algorithm.preset=sac")
    assert "algorithm.preset" in error
    assert "sao" in error


def test_a_port_in_use_is_named(moonmill: Cli, config: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refused(moonmill, "train", config, "--set", f"engine.port={port}")


def test_a_prompt_that_does_not_fit_is_told_before_anything_is_started(
    moonmill: Cli, config: Path, bad_env: Path, tmp_path: Path
) -> None:
    env = f"env={{id: '{bad_env}:Bad', args: {{prompt: '{'1+' * 300}1'}}}}"
    error = refused(moonmill, "train", config, "--set", env)
    assert "model.max_length" in error
    assert "256" in error
    assert not (tmp_path / "run").exists()


def test_a_tool_that_raises_is_told_to_the_model_and_counted_for_the_author(
    moonmill: Cli, config: Path, bad_env: Path
) -> None:
    # The starter policy begins by calling its calculator, which fails here.
    result = moonmill("eval", config, "--set", f"env={{id: '{bad_env}:Bad'}}", "--tasks", 16)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert "ZeroDivisionError" in result.stdout
    assert "bad.py:15" in result.stdout


def test_a_reward_of_nan_ends_the_run_with_the_name_of_the_reward(moonmill: Cli, attached: Path, bad_env: Path) -> None:
    env = f"env={{id: '{bad_env}:Bad', args: {{value: 'nan'}}}}"
    error = refused(moonmill, "train", attached, "--set", env, code=1)
    assert "reward 'always'" in error
    assert "nan" in error


def test_an_unwritable_run_directory_is_named(moonmill: Cli, config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    run = tmp_path / "file" / "run"
    assert str(run) in refused(moonmill, "train", config, "--set", f"run_dir={run}")
