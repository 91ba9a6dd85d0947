"""`moonmill envs new`, `check`, `record` and `replay`, as their users meet them."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import RandomAgent
from moonmill.cli.app import cli
from moonmill.cli.new import names_of
from moonmill.config import Config, EnvConfig, ModelConfig
from moonmill.config_io import dump_config
from moonmill.envs import Taskset
from moonmill.envs.wrappers import factory_of
from moonmill.errors import ConfigError
from moonmill.wrapper_config import LimitsConfig, RecordConfig, ScaleRewardConfig

EXPERT = "moonmill.envs.library.calculator:demonstrate"
CLOCK = """
import time
from moonmill import MultiTurnEnv, Task, tool, reward

class Clock(MultiTurnEnv):
    "It tells the time."

    def tasks(self, split):
        yield Task(f"What time is it, {split}?")

    @tool
    def look(self) -> str:
        "Look at the clock."
        return str(time.perf_counter_ns())

    @reward
    def none(self, rollout):
        return 0.0

def look_once(messages):
    from moonmill import Message, ToolCall
    return Message("assistant", tool_calls=(ToolCall("1", "look"),)) if len(messages) < 2 else "late"
"""

PROGRAM = """
import httpx
from moonmill import Task, reward
from moonmill.envs import ForeignEnv

class Talk(ForeignEnv):
    "Two turns, by a program."

    def __init__(self, word="more", then=""):
        self.word, self.then = word, then

    def tasks(self, split):
        yield Task("Count.")

    def play(self, task, model, seed):
        messages = [{"role": "user", "content": task.prompt}]
        for _ in range(2):
            answer = ask(model, messages)
            messages += [answer, {"role": "user", "content": f"{self.word} than {answer['content']}"}]
        if self.then:
            ask(model.unrecorded if self.then == "aside" else model, [{"role": "user", "content": "Judge."}])

    @reward
    def none(self, rollout):
        return 0.0

def ask(model, messages):
    headers = {"Authorization": f"Bearer {model.key}"}
    answer = httpx.post(f"{model.url}/chat/completions", json={"model": "x", "messages": messages}, headers=headers)
    return answer.json()["choices"][0]["message"]

def count(messages):
    return f" {len(messages)} "

def fail(messages):
    raise ValueError("no idea")
"""


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["envs", *arguments], input=input)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clock.py").write_text(CLOCK)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


# new


def test_a_new_package_works_and_is_found_by_its_entry_point(here: Path) -> None:
    result = run("new", "unit-shop", "--dir", "mine")
    assert result.exit_code == 0, result.output
    package = here / "mine" / "unit-shop"
    assert {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()} == {
        *("pyproject.toml", "README.md", "config.yaml"),
        *("src/unit_shop/__init__.py", "tests/test_unit_shop.py"),
    }
    assert "moonmill envs check unit-shop-v0" in result.output
    assert "pip install -e './mine/unit-shop[dev]'\n  python -m pytest mine/unit-shop\n" in result.output
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["moonmill.envs"] == {"unit-shop": "unit_shop"}
    assert "$" not in "".join(path.read_text() for path in package.rglob("*.*"))
    tested = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=package, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout
    assert "4 passed" in tested.stdout
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", *("--line-length", "120"), "."]
    assert subprocess.run(lint, cwd=package, check=False).returncode == 0


def test_an_environment_has_an_id_of_its_own(here: Path) -> None:
    result = run("new", "calculator")
    assert result.exit_code == 2
    assert "there is an environment calculator-v0 already: choose another name" in result.stderr
    assert not (here / "calculator").exists()


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("Unit Shop", "unit-shop"),
        ("unit_shop", "unit-shop"),
        ("UnitShop", "unit-shop"),
        ("unit-shop-v0", "unit-shop"),
        ("3d-maze", "d-maze"),
        ("../etc", "etc"),
        ("json", "json-env"),
        ("class", "class-env"),
        ("moonmill", "moonmill-env"),
        ("ein-café", "ein-caf"),
        ("a" * 60, "a" * 50),
        ("", "my-env"),
        ("日本", "my-env"),
    ],
)
def test_a_bad_name_is_told_with_one_that_would_do(name: str, better: str, here: Path) -> None:
    before = sorted(here.iterdir())
    result = run("new", name)
    assert (result.exit_code, result.output.endswith(f"try {better}\n")) == (2, True), result.output
    assert names_of(better).name == better
    assert sorted(here.iterdir()) == before


def test_nothing_is_overwritten(here: Path) -> None:
    (here / "shop").mkdir()
    (here / "shop" / "mine.txt").write_text("mine")
    result = run("new", "shop")
    assert result.exit_code == 2
    assert result.output == "error: shop is there already, and nothing is overwritten: choose another name\n"
    assert [path.name for path in (here / "shop").iterdir()] == ["mine.txt"]
    assert "clock.py/shop cannot be made: Not a directory" in run("new", "shop", "--dir", "clock.py").output


# check


def test_a_sound_environment_is_checked() -> None:
    result = run("check", "calculator-v0", "--only", "prompts")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0] == "calculator-v0: 4 of 4 checks found nothing; 0 errors, 0 warnings"


def test_what_is_found_is_told_and_ends_with_1() -> None:
    result = run("check", "clock.py:Clock")
    assert result.exit_code == 1
    assert result.output.startswith("error: determinism: the same task, seed and actions made two episodes: turn 1")
    assert "to do: draw from `self.rng` alone" in result.output
    assert "not made: interleaving, because of determinism" in result.output
    told = json.loads(run("check", "clock.py:Clock", "--json", "--only", "determinism").stdout)
    assert (told["ok"], told["env"]) == (False, "clock.py:Clock")
    assert [finding["check"] for finding in told["findings"]] == ["determinism"]
    assert told["findings"][0]["where"].endswith("clock.py:5")


def test_a_check_that_is_none_and_an_environment_that_is_none_are_refused() -> None:
    result = run("check", "calculator-v0", "--only", "leeks")
    assert (result.exit_code, result.output) == (2, "error: --only: there is no check 'leeks': did you mean leaks?\n")
    assert run("check", "calcluator-v0").exit_code == 2


# record and replay


def test_a_recorded_episode_is_replayed_byte_for_byte(here: Path) -> None:
    for options in (("--agent", EXPERT), ("--agent", "random", "--task", "3"), ("--agent", EXPERT)):
        result = run("record", "calculator-v0", "--out", "log.jsonl", *options)
        assert result.exit_code == 0, result.output
        assert "recorded in log.jsonl: moonmill envs replay log.jsonl" in result.output
    ids = [json.loads(line)["id"] for line in (here / "log.jsonl").read_text().splitlines()]
    assert ids == ["play-train-0", "play-train-3", "play-train-0-2"]
    result = run("replay", "log.jsonl")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "3 as recorded, 0 otherwise, 0 passed over"
    told = json.loads(run("replay", "log.jsonl", "--rollout", "play-train-3", "--json").stdout)
    assert [(one["id"], one["difference"]) for one in told] == [("play-train-3", None)]


def test_the_first_difference_is_shown(here: Path) -> None:
    assert run("record", "clock.py:Clock", "--agent", "clock.py:look_once", "--out", "log.jsonl").exit_code == 0
    result = run("replay", "log.jsonl")
    assert result.exit_code == 1
    first, recorded, now, last = result.output.splitlines()
    assert first == "play-train-0: goes otherwise at turn 1, what look answered"
    assert recorded.startswith('  recorded: {"role":"tool","content":"')
    assert now.startswith('  now:      {"role":"tool","content":"')
    assert last == "0 as recorded, 1 otherwise, 0 passed over"
    log = here / "log.jsonl"
    log.write_text(log.read_text().replace('"reward":0.0', '"reward":1.0'))
    log.write_text(log.read_text().replace("What time is it", "How late is it"))
    [difference] = [one["difference"] for one in json.loads(run("replay", "log.jsonl", "--json").stdout)]
    assert difference["where"] == "turn 1, what look answered"


def test_what_a_program_plays_is_replayed_by_what_it_asks(here: Path) -> None:
    recorded = run("record", "program.py:Talk", "--agent", "program.py:count", "--out", "log.jsonl")
    assert recorded.exit_code == 0, recorded.output
    result = run("replay", "log.jsonl")
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "play-train-0: as recorded, 2 turns")
    result = run("replay", "log.jsonl", "--set", "env.args.word=less")
    assert result.exit_code == 1
    assert result.output.splitlines()[:3] == [
        "play-train-0: goes otherwise at turn 1, the user's message",
        '  recorded: {"role":"user","content":"more than  1 "}',
        '  now:      {"role":"user","content":"less than  1 "}',
    ]
    result = run("replay", "log.jsonl", "--set", "env.args.then=more")
    assert (result.exit_code, result.output.splitlines()[0]) == (1, "play-train-0: goes otherwise at the prompt")


@pytest.mark.parametrize("then", ["aside", "more"])
def test_what_a_program_has_asked_besides_cannot_be_replayed(then: str) -> None:
    options = ("--agent", "program.py:count", "--out", "log.jsonl", "--set", f"env.args.then={then}")
    said = run("record", "program.py:Talk", *options).output.splitlines()[-1]
    why = "cannot be replayed: its program asked more of the model than its messages tell"
    assert (f"recorded in log.jsonl; it {why}" in said, "moonmill envs replay" in said) == (True, False)
    result = run("replay", "log.jsonl")
    assert (result.exit_code, f"play-train-0: {why}" in result.output) == (2, True), result.output


@pytest.mark.parametrize("env", ["program.py:Talk", "calculator-v0"])
def test_an_episode_whose_agent_raised_is_not_recorded(env: str, here: Path) -> None:
    result = run("record", env, "--agent", "program.py:fail", "--out", "log.jsonl")
    assert result.exit_code == 1
    why = "it could not be replayed: its agent or its engine failed"
    assert result.output.splitlines()[-1] == f"nothing is recorded, for {why}"
    assert "no idea" in result.output
    assert (here / "log.jsonl").read_text() == ""


def test_a_person_who_plays_a_program_is_shown_everything_once() -> None:
    command = [sys.executable, "-m", "moonmill", "envs", "play", "program.py:Talk"]
    done = subprocess.run(command, input="one\ntwo\n", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[2:5] == ["user: Count.", "user: more than one", ""]


def test_a_person_records_too(here: Path) -> None:
    command = [sys.executable, "-m", "moonmill", "envs", "record", "calculator-v0", "--out", "log.jsonl"]
    arguments = ["--set", "env.args.levels=[1]"]
    done = subprocess.run(
        [*command, *arguments], input="/calculate 1+2\n3\n", capture_output=True, text=True, check=True
    )
    assert "the episode is over: your message called no tool" in done.stdout
    assert "moonmill envs replay log.jsonl --set 'env.args.levels=[1]'" in done.stdout
    assert run("replay", "log.jsonl", *arguments).exit_code == 0


def test_a_runs_rollouts_are_replayed_with_its_arguments(here: Path) -> None:
    assert run("record", "calculator-v0", "--agent", EXPERT, "--out", "log.jsonl").exit_code == 0
    folder = here / "runs" / "x"
    folder.mkdir(parents=True)
    config = Config(env=EnvConfig("calculator-v0", {"levels": [1]}), model=ModelConfig("policy"))
    (folder / "config.yaml").write_text(dump_config(config))
    (here / "log.jsonl").rename(folder / "rollouts.jsonl")
    assert run("replay", "runs/x", "--rollout", "play-train-0").exit_code == 0


def test_a_runs_rollouts_are_replayed_in_its_wrappers_and_its_files_are_left_alone(here: Path) -> None:
    wrappers = (LimitsConfig(turns=1), ScaleRewardConfig(factor=0.5), RecordConfig(path="recorded.jsonl"))
    config = Config(env=EnvConfig("calculator-v0", {"levels": [2]}, wrappers), model=ModelConfig("policy"))
    factory = factory_of(config.env)
    task = Taskset(factory, "train", 0).task(0)
    anyio.run(lambda: EpisodeRunner("calculator-v0", factory, RandomAgent()).run(task, id="0", seed=0))
    folder = here / "runs" / "x"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(config))
    played = (here / "recorded.jsonl").read_bytes()
    (folder / "rollouts.jsonl").write_bytes(played)
    assert run("replay", "runs/x").output.splitlines() == [
        "0: as recorded, 1 turn",
        "1 as recorded, 0 otherwise, 0 passed over",
    ]
    assert (here / "recorded.jsonl").read_bytes() == played


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "none.jsonl"), "there is no file none.jsonl"),
        (("replay", "."), "is not a run directory"),
        (("replay", "clock.py"), "clock.py, line 1 cannot be read"),
        (("record", "calculator-v0", "--out", "x", "--agent", "randon"), "did you mean random?"),
        (
            ("record", "calculator-v0", "--out", "x", "--agent", "clock.py:lok"),
            "no function 'lok'; it defines: look_once",
        ),
        (("add", "verifiers:x", "--from", "../vf/nope"), "error: --from ../vf/nope: there is no such folder or file"),
        (("add", "verifiers:x", "--from", "nope.whl"), "error: --from nope.whl: there is no such folder or file"),
        (("show", "nope.yaml"), "error: no config file nope.yaml"),
        (("record", "calculator-v0", "--out", "no/x", "--agent", "random"), "/no/x: No such file or directory"),
    ],
)
def test_what_cannot_be_is_told(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, words in result.output) == (2, True), result.output
    assert "Traceback" not in result.output


def test_nothing_is_made_for_a_package_that_is_not_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    assert run("add", "verifiers:x", "--from", "../vf/nope").exit_code == 2
    assert not (here / "cache").exists()


def test_a_configs_environment_is_shown_with_its_arguments_and_wrappers(here: Path) -> None:
    config = {"env": {"id": "calculator-v0", "args": {"levels": [2]}, "wrappers": [{"type": "limits", "turns": 3}]}}
    (here / "mix.yaml").write_text(json.dumps({**config, "model": {"path": "policy"}}))
    shown = run("show", "mix.yaml")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[0] == "calculator-v0"
    assert any(line.startswith("limits: max_turns 3, ") for line in lines)
    assert "reward correct, weight 1" in lines
    assert "task train-0, level 2" in lines


def test_a_rollout_that_is_not_there_is_told_with_some_that_are() -> None:
    assert run("record", "calculator-v0", "--agent", EXPERT, "--out", "log.jsonl").exit_code == 0
    result = run("replay", "log.jsonl", "--rollout", "play-train-1")
    assert result.exit_code == 2
    assert result.output == "error: log.jsonl has no rollout 'play-train-1'; it has 1, such as play-train-0\n"


def test_names_of_an_environment() -> None:
    names = names_of("unit-shop2")
    assert (names.module, names.class_name, names.env_id) == ("unit_shop2", "UnitShop2", "unit-shop2-v0")
    with pytest.raises(ConfigError, match=r"try unit-shop$"):
        names_of("unit--shop")
