"""The command line as its users meet it: help, results, exit codes, errors."""

import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import httpx
import pytest
from click.testing import CliRunner

import moonmill
from moonmill.agents.human import HINT
from moonmill.cli.app import RootGroup, cli
from moonmill.cli.failures import explain
from moonmill.cli.validate import _settings
from moonmill.config import Config, EnvConfig, ModelConfig
from moonmill.config_io import dump_config
from moonmill.errors import ConfigError, MoonmillError, RunError
from moonmill.trainer import checkpoint

COMMANDS = [
    *("train", "pretrain-critic", "eval", "compare", "validate", "plan", "inspect", "plot", "envs", "serve"),
    *("export", "engine", "sandbox", "doctor"),
]

ENVS = [f"envs {name}" for name in ("list", "show", "play", "check", "record", "replay", "new")]


def run(*arguments: str, input: str | None = None):
    return CliRunner().invoke(cli, arguments, input=input)


def moonmill_process(*arguments: str, input: str = "", cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "moonmill", *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        check=False,
    )


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(dump_config(Config(env=EnvConfig("calculator-v0"), model=ModelConfig("policy"))))
    return path


# Help


def test_help_names_every_command_and_says_what_it_does():
    result = run("--help")
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.output.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == COMMANDS
    assert "..." not in result.output.partition("Commands:")[2]


@pytest.mark.parametrize("command", [*COMMANDS, *ENVS, "engine install", "engine list", "engine serve"])
def test_every_command_explains_itself(command):
    result = run(*command.split(), "-h")
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")


@pytest.mark.parametrize(
    "command",
    [
        "validate x",
        "plan x",
        "doctor x",
        "train x",
        "eval x",
        "inspect x",
        *(f"{name} x" for name in ENVS[:-1]),
        "serve x",
        "export x",
    ],
)
def test_every_command_with_results_has_them_as_json(command):
    assert "--json" in run(*command.split()[:-1] if command.endswith("x") else command.split(), "--help").output


def options_of(group: click.Group) -> list[tuple[str, click.Option]]:
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            found += options_of(command)
        else:
            found += [(name, option) for option in command.params if isinstance(option, click.Option)]
    return found


def test_every_option_explains_itself():
    assert [(name, option.name) for name, option in options_of(cli) if not option.help and name != "serve"] == []


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom moonmill.cli.app import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'rich', 'yaml', 'httpx', 'anyio') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_an_evaluation_by_an_api_imports_nothing_heavy():
    code = (
        "import sys, moonmill.trainer.evaluate, moonmill.cli.eval_tables\n"
        "print([m for m in ('torch', 'transformers', 'renderers', 'uvicorn', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out == "[]\n"


def test_the_version():
    assert run("--version").output == f"moonmill {moonmill.__version__}\n"


# Bad usage


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("trian x.yaml", "No such command 'trian'"),
        ("train", "Missing argument 'CONFIG'"),
        ("train --stps 3 x.yaml", "No such option"),
        ("eval calculator-v0 --samples 0 --model .", "0 is not in the range x>=1"),
        ("eval calculator-v0 --temperature -1 --model .", "-1.0 is not in the range x>=0"),
        ("eval calculator-v0 --temperature nan --model .", "nan is no finite number"),
        ("eval calculator-v0 --prices 1 inf --model .", "inf is no finite number"),
        ("eval calculator-v0 --model nowhere", "error: nowhere is no folder: give the folder of a model or of a run"),
        (
            "eval calculator-v0",
            "error: calculator-v0 is neither a config file nor a run, so an environment: say with --model what",
        ),
        ("eval runs/nope", "error: there is no run, no config and no other file runs/nope"),
        ("eval runs/nope --model .", "error: there is no run, no config and no other file runs/nope"),
        ("eval", "Missing argument 'CONFIG|RUN|ENV_ID...'"),
        ("eval calculator-v0 calculator-v0 --model .", "an environment is named twice"),
        (
            "eval calculator-v0 demo.yaml --model .",
            "error: demo.yaml says what is played and by whom: evaluate it alone",
        ),
        ("eval calculator-v0 --api http://a/v1", "error: --api: say with --model what the model is called there"),
        ("eval calculator-v0 --model . --api-key-env KEY", "error: --api-key-env: of use with --api alone"),
        (
            "eval calculator-v0 --api http://a/v1 --model m --api-key-env NO_SUCH_KEY",
            "error: --api-key-env: the environment variable NO_SUCH_KEY is empty or not set",
        ),
        ("eval calculator-v0 --api a/v1 --model m", "error: the chat API's address is 'a/v1', but should look like"),
        ("eval --compare a", "Option '--compare' requires 2 arguments"),
        ("eval x --compare a b", "are compared and nothing is played: leave out x"),
        ("eval --compare . .", "error: . is no folder of `moonmill eval --out`: settings.json: No such file"),
        ("eval calculator-v0 --api http://a/v1 --model m --out .", "holds something else than an evaluation"),
        ("export nowhere --out new", "error: nowhere is no folder: give the folder of a model or of a run"),
        ("export . --out new", "error: . is not a model folder: it has no config.json"),
        ("export .", "Missing option '--out'"),
        ("serve nowhere", "error: nowhere is no folder: give the folder of a model or of a run"),
        ("serve . --port 70000", "70000 is not in the range 0<=x<=65535"),
        ("inspect . --rollouts -1", "-1 is not in the range x>=0"),
    ],
)
def test_bad_usage_is_explained_and_exits_with_2(arguments, words, config):
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


# Bad configs


@pytest.mark.parametrize("command", ["train", "validate", "eval"])
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learner.lrr=1", "learner.lrr (from --set): unknown key (with the value 1), did you mean `lr`?"),
        ("train.steps=ten", "train.steps (from --set): expected a whole number of at least 1, got 'ten'"),
        ("algorithm.preset=soa", "'rloo' or 'sao', got 'soa', did you mean `sao`?"),
        ("learner.bach=3", "learner.bach (from --set): unknown key (with the value 3), did you mean `batch_rollouts`?"),
        ("algorithm.preset=ppo", "'rloo' or 'sao', got 'ppo'\n"),
        ("learner.lr", "--set learner.lr: expected key=value"),
    ],
)
def test_a_bad_config_is_one_error_without_a_traceback_and_exits_with_2(command, override, words, config):
    result = run(command, str(config), "--set", override)
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert words in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["train", "validate", "eval"])
def test_a_missing_config_file_is_named(command, config):
    result = run(command, "dmeo.yaml")
    assert (result.exit_code, result.output) == (2, "error: no config file dmeo.yaml, did you mean demo.yaml?\n")


def test_a_folder_that_is_no_run_cannot_be_inspected(tmp_path):
    result = run("inspect", str(tmp_path))
    assert (result.exit_code, result.output) == (
        2,
        f"error: {tmp_path} is not a run directory: it has no config.yaml\n",
    )


@pytest.mark.parametrize(
    ("command", "override", "words"),
    [
        ("train", "run_dir=old", "old already holds a run"),
        ("train", "run_dir=demo.yaml", "demo.yaml is a file"),
        ("train", "env.id=none-v0", "there is no environment 'none-v0'"),
        ("train", "model.device=gpu", "model.device: 'gpu' is unknown"),
        ("train", "model.path=nowhere", "model.path: there is no folder nowhere"),
        ("train", "async.window=1", "async.window: 1 is smaller"),
        ("eval", "env.id=none-v0", "there is no environment 'none-v0'"),
        ("eval", "model.device=gpu", "model.device: 'gpu' is unknown"),
        ("eval", "model.path=nowhere", "model.path: there is no folder nowhere"),
    ],
)
def test_what_is_wrong_is_told_before_anything_heavy_is_imported(command, override, words, config, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").touch()
    (tmp_path / "old" / "rollouts.jsonl").write_text("{}\n")
    code = (
        "import sys\nfrom moonmill.cli.app import cli\n"
        f"try: cli.main({[command, str(config), '--set', override]!r})\nexcept SystemExit as e: print(e.code)\n"
        "print([m for m in ('torch', 'transformers', 'renderers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2\n[]\n"
    assert words in done.stderr


SEARCH = """
from moonmill import MultiTurnEnv, Task, tool

class Search(MultiTurnEnv):
    def tasks(self, split):
        while True:
            yield Task("1+1")

    @tool
    def search(self, query: str) -> str:
        "Look something up."
        return query
"""


def test_a_config_that_cannot_be_trained_says_so_at_the_end(config):
    result = run("validate", str(config), "--set", "env.id=none-v0", "--set", "model.device=gpu")
    assert result.exit_code == 2
    assert result.stderr == f"error: {config} cannot be trained, because of: environment, device, model\n"
    assert result.stdout.count("there is no environment 'none-v0'") == 1


def test_a_valid_config_ends_with_what_was_looked_at(config):
    policy = Path(__file__).parents[2] / "examples" / "calculator" / "policy"
    sets = ("--set", f"model={{path: {policy}, max_length: 256}}")
    result = run("validate", str(config), *sets)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("ok: environment, sandbox, algorithm,")
    assert "gae: gamma 1.0, lam adaptive, alpha 1.5" in result.stdout
    told = json.loads(run("validate", str(config), *sets, "--json").stdout)
    assert told["ok"] is True
    assert not any(check["warning"] for check in told["checks"])
    assert {check["name"] for check in told["checks"]} >= {"environment", "device", "prompts"}
    assert told["algorithm"]["objective"] == {"type": "dis", "low": 0.3, "high": 5.0}


def test_what_can_be_trained_and_may_not_be_what_is_wanted_has_a_mark_of_its_own(config, tmp_path):
    (tmp_path / "search.py").write_text(SEARCH)
    policy = Path(__file__).parents[2] / "examples" / "calculator" / "policy"
    sets = ("--set", f"model={{path: {policy}, max_length: 256}}", "--set", "env.id=search.py:Search")
    result = run("validate", str(config), *sets)
    assert result.exit_code == 0, result.output
    [row] = [line.split() for line in result.stdout.splitlines() if "told nothing of" in line]
    assert row[:2] == ["warning", "prompts"]
    assert result.stdout.splitlines()[-1].startswith("ok, with warnings (prompts): environment, ")


# Errors on the way


@click.command()
@click.argument("kind")
def fail(kind: str) -> None:
    raise {
        "config": ConfigError("learner.lr: no"),
        "run": RunError("the engine is gone"),
        "bug": ValueError("a\nb"),
        "interrupt": KeyboardInterrupt(),
        "module": ModuleNotFoundError("No module named 'torch'", name="torch"),
        "our module": ModuleNotFoundError("No module named 'moonmill.x'", name="moonmill.x"),
        "pipe": BrokenPipeError(32, "Broken pipe"),
        "group": ExceptionGroup("many", [RunError("one"), ExceptionGroup("inner", [ConfigError("two")])]),
        "mixed": ExceptionGroup("many", [RunError("one"), ValueError("a bug")]),
    }[kind]


failing = RootGroup(commands_in={"fail": f"{__name__}:fail"})


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("config", 2, "error: learner.lr: no\n"),
        ("run", 1, "error: the engine is gone\n"),
        ("interrupt", 1, "stopped\n"),
        ("module", 1, "error: this needs torch, which is not installed: pip install 'moonmill[train]'\n"),
        ("group", 2, "error: one\nerror: two\n"),
    ],
)
def test_an_error_for_users_is_said_plainly_with_its_exit_code(kind, code, said):
    result = CliRunner().invoke(failing, ["fail", kind])
    assert (result.exit_code, result.output) == (code, said)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bug", "ValueError: a b"),
        ("our module", "ModuleNotFoundError: No module named 'moonmill.x'"),
        ("pipe", "BrokenPipeError: [Errno 32] Broken pipe"),
        ("mixed", "RunError: one"),
    ],
)
def test_a_bug_is_one_line_and_its_traceback_is_in_a_file(kind, name, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = CliRunner().invoke(failing, ["fail", kind])
    [file] = tmp_path.iterdir()
    assert result.exit_code == 1
    assert result.output == f"internal error: {name} (this is a bug in moonmill; traceback in {file})\n"
    assert "Traceback (most recent call last)" in file.read_text()
    assert "in fail" in file.read_text()


def test_a_traceback_that_cannot_be_written_is_printed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    text, code = explain(ValueError("a bug"))
    assert code == 1
    assert "its traceback follows" in text


@pytest.mark.parametrize("error", MoonmillError.__subclasses__())
def test_every_error_of_ours_ends_with_1_or_2(error):
    assert explain(error("it went wrong")) == ("error: it went wrong", error.exit_code)
    assert error.exit_code in (1, 2)


def test_a_reader_that_leaves_is_no_error():
    script = f"set -o pipefail; {sys.executable} -m moonmill --help | head -c 1"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr == ""


# Environments


def test_environments_are_listed():
    result = run("envs", "list", "--json")
    assert result.exit_code == 0
    [calculator] = [row for row in json.loads(result.stdout) if row["id"] == "calculator-v0"]
    assert calculator["summary"]
    assert calculator["error"] is None
    assert "calculator-v0" in run("envs", "list").stdout


def test_an_environment_is_shown():
    facts = json.loads(run("envs", "show", "calculator-v0", "--json").stdout)
    assert facts["tools"][0]["parameters"]["type"] == "object"
    assert [task["id"] for task in facts["tasks"]] == ["train-0", "eval-0"]
    text = run("envs", "show", "calculator-v0").stdout
    assert f"tool {facts['tools'][0]['name']}" in text
    assert "\x1b" not in text


def test_environments_are_shown_and_played_with_arguments() -> None:
    facts = json.loads(run("envs", "show", "calculator-v0", "--set", "env.args.levels=[3]", "--json").stdout)
    assert {task["level"] for task in facts["tasks"]} == {"3"}
    played = moonmill_process("envs", "play", "calculator-v0", "--set", "env.args.levels=[4]", "--json", input="7\n")
    assert json.loads(played.stdout)["task"]["level"] == "4"


def test_an_environment_without_a_training_split_is_shown() -> None:
    facts = json.loads(run("envs", "show", "python-code-v0", "--set", "env.args.dataset=humaneval", "--json").stdout)
    assert [task["id"] for task in facts["tasks"]] == ["HumanEval/0"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("levels=[3]", "--set levels: of no use here"),
        ("env.id=other-v0", "--set env.id: of no use here"),
        ("env.args.level=3", "unexpected keyword argument 'level'"),
        ("env.args=3", "--set: env.args (from --set)"),
    ],
)
def test_what_is_no_argument_is_refused(override: str, said: str) -> None:
    for command in ("show", "play"):
        result = run("envs", command, "calculator-v0", "--set", override)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_an_unknown_environment_names_its_neighbour():
    result = run("envs", "show", "calcluator-v0")
    assert result.exit_code == 2
    assert "calculator-v0" in result.output
    assert "Traceback" not in result.output


def test_an_environment_is_played_from_the_terminal():
    result = moonmill_process("envs", "play", "calculator-v0", input="/nonsense 1\nno idea\n")
    assert result.returncode == 0, result.stderr
    assert "user: " in result.stdout
    assert "tool: " in result.stdout
    assert "=> finished, answered, reward 0.000, 2 turns" in result.stdout


def test_a_played_episode_is_a_rollout_in_json():
    result = moonmill_process("envs", "play", "calculator-v0", "--split", "eval", "--json", input="no idea\n")
    rollout = json.loads(result.stdout)
    assert (rollout["status"], rollout["reward"], rollout["task"]["split"]) == ("finished", 0.0, "eval")
    assert "user: " in result.stderr


GAME = """
from moonmill import MultiTurnEnv, Task, tool

class Game(MultiTurnEnv):
    "A game."
    system_prompt = "Put things."

    def tasks(self, split):
        yield Task("Go.")

    @tool
    def put(self, key: str, count: int) -> str:
        "Put."
        self.finish(reward=0.5)
        return f"{count} of {key} put"

class _Helper(MultiTurnEnv):
    pass
"""


def test_a_player_sees_the_last_answer_the_reward_and_why_the_episode_ended(tmp_path):
    (tmp_path / "game.py").write_text(GAME)
    typed = "/help\n/tools\n/put a\n/last\n/put a 3\n"
    result = moonmill_process("envs", "play", "game.py:Game", input=typed, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "task train-0, at most 8 turns"
    assert lines[1:5] == ["/put key=… count=…: Put.", HINT, "system: Put things.", "user: Go."]
    assert lines[-7:-4] == ["count missing; type /put key=… count=…", "system: Put things.", "user: Go."]
    assert lines[-4:] == [
        "tool: 3 of a put",
        "",
        "the episode is over: the environment ended it",
        "=> finished, stopped, reward 0.500, 1 turns",
    ]


def test_a_player_gets_a_sandbox_where_the_environment_wants_one(tmp_path):
    (tmp_path / "boxed.py").write_text(
        """
from moonmill import MultiTurnEnv, SandboxLimits, SandboxSpec, Task, tool

class Boxed(MultiTurnEnv):
    sandbox = SandboxSpec(files={"data.txt": "1"}, limits=SandboxLimits(memory_mib=99))

    def tasks(self, split):
        yield Task("Look around.")

    @tool
    def look(self) -> str:
        return self.sandbox.exec(["sh", "-c", "pwd; echo $HOME"]).stdout
"""
    )
    shown = moonmill_process("envs", "show", "boxed.py:Boxed", cwd=tmp_path).stdout
    assert "sandbox: files data.txt, memory_mib 99, pids 128, disk_mib 256, lifetime 3600.0" in shown
    typed = "/look\nnothing here\n"
    result = moonmill_process("envs", "play", "boxed.py:Boxed", input=typed, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "/workspace" in result.stdout
    command = ("envs", "play", "boxed.py:Boxed", "--sandbox", "unsafe-subprocess")
    result = moonmill_process(*command, input=typed, cwd=tmp_path)
    assert "/moonmill-unsafe-" in result.stdout
    result = moonmill_process(*command[:-1], "dokcer", input=typed, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: sandbox.provider: there is no provider 'dokcer': did you mean docker?")
    for provider, words in (
        ("nonsense:x", "nonsense:x cannot be had: ModuleNotFoundError"),
        ("os:getcwd", "makes a str"),
    ):
        result = moonmill_process(*command[:-1], provider, input=typed, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("error: sandbox.provider: ")
        assert words in result.stderr


def test_a_player_may_quit(tmp_path):
    result = moonmill_process("envs", "play", "calculator-v0", input="/quit\n")
    assert (result.returncode, result.stderr) == (1, "stopped\n")


def test_the_system_prompt_is_shown(tmp_path):
    (tmp_path / "game.py").write_text(GAME)
    assert "system: Put things." in run("envs", "show", f"{tmp_path}/game.py:Game").stdout
    assert (
        json.loads(run("envs", "show", f"{tmp_path}/game.py:Game", "--json").stdout)["system_prompt"] == "Put things."
    )


def test_a_file_without_a_class_lists_its_environments(tmp_path):
    (tmp_path / "game.py").write_text(GAME)
    file = f"{tmp_path}/game.py"
    assert json.loads(run("envs", "show", file, "--json").stdout) == [
        {"id": f"{file}:Game", "summary": "A game.", "error": None}
    ]
    assert f"{file}:Game  A game." in run("envs", "show", file).stdout
    result = run("envs", "play", file)
    assert result.exit_code == 2
    assert result.output == (
        f"error: {file} is a file, not an environment: name the class as well; it defines {file}:Game\n"
    )


def test_a_player_who_leaves_ends_the_episode():
    result = moonmill_process("envs", "play", "calculator-v0", input="")
    assert (result.returncode, result.stderr) == (1, "stopped\n")


def test_a_player_may_leave_with_ctrl_c_while_asked():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "moonmill", "envs", "play", "calculator-v0"])
    shown = read_until(terminal, b"> ")
    os.write(terminal, b"\x03")
    shown += read_until(terminal, b"stopped")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 1
    assert b"user: " in shown


def read_until(terminal: int, wanted: bytes, seconds: float = 30) -> bytes:
    read, end = b"", time.monotonic() + seconds
    while wanted not in read:
        assert select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0], read
        read += os.read(terminal, 1 << 16)
    return read


# Serving


def test_a_folder_without_a_model_cannot_be_served(tmp_path):
    result = moonmill_process("serve", str(tmp_path), "--port", "0")
    assert result.returncode == 2
    assert result.stderr == f"loading {tmp_path} …\nerror: {tmp_path} is not a model folder: it has no config.json\n"


def test_a_port_in_use_is_told_before_the_model_is_loaded(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = moonmill_process("serve", str(tmp_path), "--port", str(port))
    assert result.returncode == 2
    assert result.stderr.startswith(
        f"loading {tmp_path} …\nerror: cannot listen on 127.0.0.1:{port}: Address already in use"
    )
    assert result.stdout == ""


def test_a_run_without_a_checkpoint_cannot_be_served(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    result = run("serve", str(tmp_path))
    assert result.exit_code == 2
    assert result.output == f"error: {tmp_path} has no checkpoint yet; give the folder of a model\n"


def test_every_option_of_serve_is_explained():
    assert all(option.help for option in cli.get_command(None, "serve").params if isinstance(option, click.Option))


def test_a_host_that_is_none_is_told_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    result = moonmill_process("serve", str(tmp_path), "--host", "x" * 300)
    assert result.returncode == 2
    loading, error = result.stderr.splitlines()
    assert loading == f"loading {tmp_path} …"
    assert error.startswith("error: cannot listen on xxx")


def test_modules_of_the_folder_do_not_get_in_the_way_of_the_engine(tmp_path):
    (tmp_path / "queue.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "config.json").write_text("{}")
    command = [Path(sys.executable).with_name("moonmill"), "serve", tmp_path, "--host", "x" * 300]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[1].startswith("error: cannot listen on xxx")


def test_a_run_is_served_as_it_was_trained(tmp_path):
    policy = Path(__file__).parents[2] / "examples" / "calculator" / "policy"
    model = ModelConfig(str(policy), max_length=200, dtype="bfloat16")
    (tmp_path / "config.yaml").write_text(dump_config(Config(env=EnvConfig("calculator-v0"), model=model)))

    def fill(folder):
        shutil.copytree(policy, folder / "policy")
        for name in ("optimizers.pt", "state.json"):
            (folder / name).touch()

    (tmp_path / "checkpoints").mkdir()
    checkpoint.write(tmp_path, 1, 1, fill)
    command = [sys.executable, "-m", "moonmill", "serve", str(tmp_path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stderr is not None
        assert serving.stderr.readline() == f"loading {tmp_path / 'checkpoints' / 'step-000001' / 'policy'} …\n"
        url = json.loads(serving.stdout.readline())["url"]
        (card,) = httpx.get(f"{url}/models", timeout=10).json()["data"]
        serving.send_signal(signal.SIGINT)
    assert card["max_model_len"] == 200
    assert card["id"] == tmp_path.name
    assert serving.returncode == 0


def test_a_damaged_checkpoint_is_not_served(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "checkpoints").mkdir()
    checkpoint.write(tmp_path, 1, 1, lambda folder: (folder / "state.json").write_text("{}"))
    (tmp_path / "checkpoints" / "step-000001" / "state.json").write_text("")
    ended = subprocess.run(
        [sys.executable, "-m", "moonmill", "serve", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "step-000001 is damaged: state.json is not what was written. `moonmill train" in ended.stderr


def test_a_nested_section_is_written_as_the_rest_is():
    part = {"type": "gae", "path": None, "pretrain": {"max_steps": 200}}
    assert _settings(part) == "gae: pretrain (max_steps 200)"
