"""`moonmill eval` with a script in the model's place."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moonmill.cli.app import cli
from moonmill.trainer.eval_folder import read_settings

SCRIPT = """
from moonmill.envs.library.calculator import demonstrate

def expert(messages):
    return demonstrate(messages)
"""


def evaluate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["eval", *arguments])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def test_a_script_is_evaluated_kept_gone_on_with_and_refused_once_it_was_changed(here: Path) -> None:
    command = ("calculator-v0", "--agent", "script.py:expert", "--tasks", "3", "--samples", "2", "--out", "kept")
    played = evaluate(*command, "--json")
    assert played.exit_code == 0, played.output
    [result] = json.loads(played.stdout)
    assert (result["samples"], result["success"], result["pass_at"]["pass@2"]["value"]) == (6, 1.0, 1.0)
    assert (result["temperature"], result["version"]) == (0.0, None)
    settings = read_settings(here / "kept")
    assert settings.player["agent"] == f"{here / 'script.py'}:expert"
    assert settings.sampling is None
    log = (here / "kept" / "rollouts.jsonl").read_bytes()

    again = evaluate(*command)
    assert "6 of 6 rollouts are there already" in again.stderr
    assert "sampled:" not in again.stdout
    assert (here / "kept" / "rollouts.jsonl").read_bytes() == log

    (here / "script.py").write_text(f"{SCRIPT}\n# better\n")
    changed = evaluate(*command)
    assert changed.exit_code == 2
    assert "player.code: " in changed.stderr
    other = evaluate(*command[:2], "random", *command[3:])
    assert "player.agent: " in other.stderr


def test_of_a_decorated_script_the_file_that_is_named_counts(here: Path) -> None:
    (here / "beside.py").write_text(
        "import functools\n\ndef polite(say):\n    @functools.wraps(say)\n    def said(messages):\n"
        "        return say(messages)\n    del said.__wrapped__\n    said.__module__ = __name__\n    return said\n"
    )
    script = "import functools\nfrom beside import polite\n\n@polite\ndef decorated(messages):\n    return '1'\n\n"
    script += "partial = functools.partial(decorated)\n"
    for name in ("decorated", "partial"):
        command = ("calculator-v0", "--agent", f"named.py:{name}", "--tasks", "1", "--out", name)
        (here / "named.py").write_text(script)
        played = evaluate(*command)
        assert played.exit_code == 0, played.output
        assert read_settings(here / name).player["code"]
        (here / "named.py").write_text(f"{script}# changed\n")
        changed = evaluate(*command)
        assert (changed.exit_code, "player.code: " in changed.stderr) == (2, True), changed.output


def test_a_script_that_changes_the_working_directory_changes_neither_its_name_nor_the_folder(here: Path) -> None:
    (here / "away").mkdir()
    (here / "leaves.py").write_text("import os\nos.chdir('away')\n\ndef play(messages):\n    return '1'\n")
    played = evaluate("calculator-v0", "--agent", "leaves.py:play", "--tasks", "1", "--out", "kept")
    assert played.exit_code == 0, played.output
    assert read_settings(here / "kept").player["agent"] == f"{here / 'leaves.py'}:play"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--agent", "randon"), "did you mean random?"),
        (("--agent", "script.py:exprt"), "no function 'exprt'; it defines: expert"),
        (("--agent", "none.py:f"), "there is no script file "),
        (("--agent", "no_such_module:f"), "the script's module 'no_such_module' cannot be imported"),
        (("--agent", "human"), "--agent: a person plays one episode at a time, with `moonmill envs play`"),
        (("--agent", "random", "--model", "."), "a script plays, which has no use for --model: leave that out"),
        (
            ("--agent", "random", "--api", "http://a/v1", "--temperature", "1", "--prices", "1", "2"),
            "no use for --api, --prices, --temperature",
        ),
    ],
)
def test_what_a_script_has_no_use_for_is_refused(arguments: tuple[str, ...], words: str) -> None:
    result = evaluate("calculator-v0", *arguments)
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("calculator-v0",), "leave out calculator-v0"),
        (("--agent", "random", "--tasks", "4", "--model", "q"), "leave out --model, --agent, --tasks"),
        (("--out", "o", "--set", "eval.tasks=1", "--temperature", "0"), "leave out --temperature, --out, --set"),
    ],
)
def test_what_a_comparison_has_no_use_for_is_refused(arguments: tuple[str, ...], words: str) -> None:
    result = evaluate("--compare", "a", "b", *arguments)
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


def test_a_run_is_compared_once_it_was_evaluated(here: Path) -> None:
    run = here / "runs" / "x"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    result = evaluate("--compare", "runs/x", "runs/x")
    assert result.exit_code == 2
    assert "runs/x is a run: evaluate it first, with `moonmill eval runs/x --out evals/x`" in result.stderr
