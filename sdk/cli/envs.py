"""`moonmill envs`: what environments there are, and what they look like. The other commands have their own modules."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moonmill.cli.check import check
from moonmill.cli.env_add import add
from moonmill.cli.new import new
from moonmill.cli.options import args_option, json_option
from moonmill.cli.play import play
from moonmill.cli.record import record, replay
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from moonmill.config import EnvConfig
    from moonmill.envs import MultiTurnEnv
    from moonmill.sandboxes import SandboxSpec
    from moonmill.types import Message, Task

_SPLITS = ("train", "eval")


@click.group()
def envs() -> None:
    """List, show, play, check, begin and add environments."""


for command in (new, add, check, play, record, replay):
    envs.add_command(command)


@envs.command("list", cls=Command)
@json_option
def list_all(as_json: bool) -> None:
    """List the registered environments, and those that were added."""
    from moonmill.envs.adapters.verifiers.added import all_added
    from moonmill.registry import list_envs, plugin_errors

    for plugin, why in plugin_errors().items():
        click.echo(f"warning: the plugin {plugin} could not be loaded: {why}", err=True)
    added = {f"verifiers:{a.id}": f"API {a.api} of verifiers {a.version}, run by {a.python}" for a in all_added()}
    _print_list((spec.id for spec in list_envs()), as_json, added)


def _print_list(ids: "Iterable[str]", as_json: bool, added: "Mapping[str, str] | None" = None) -> None:
    """Print environments.

    Args:
        ids: of those that can be made here.
        as_json: for programs.
        added: what there is to say of others.
    """
    from moonmill.cli.output import console, print_json, table
    from moonmill.errors import MoonmillError
    from moonmill.registry import make

    rows = []
    for env_id in ids:
        try:
            rows.append({"id": env_id, "summary": _summary(make(env_id)), "error": None})
        except MoonmillError as e:
            rows.append({"id": env_id, "summary": "", "error": str(e)})
    rows += [{"id": env_id, "summary": said, "error": None} for env_id, said in (added or {}).items()]
    if as_json:
        print_json(rows)
        return
    out = console()
    grid = table(out, "id", "")
    for row in rows:
        grid.add_row(row["id"], row["error"] or row["summary"], style="red" if row["error"] else None)
    out.print(grid)


@envs.command("show", cls=Command)
@click.argument("env_id", metavar="ID|CONFIG")
@click.option("--seed", type=int, default=0, show_default=True, help="Which tasks to show.")
@args_option
@json_option
def show(env_id: str, seed: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show an environment's tools, limits and first tasks.

    ID is a registered id, path/to/file.py:Class or package.module:Class. A file without a class lists its environments.
    CONFIG is a YAML file that names one, with its arguments and wrappers.
    """
    from moonmill.agents.human import parameter_lines
    from moonmill.cli.output import console, print_json
    from moonmill.cli.transcripts import print_message
    from moonmill.config_io import load_config, make_env_config
    from moonmill.registry import envs_in
    from moonmill.types import Message

    if env_id.endswith(".py"):
        _print_list(envs_in(env_id), as_json)
        return
    is_config = env_id.endswith((".yaml", ".yml"))
    env = load_config(Path(env_id), overrides).env if is_config else make_env_config(env_id, overrides)
    facts = describe(env, seed)
    if as_json:
        print_json(facts)
        return
    out = console()
    out.print(facts["id"], style="bold")
    out.print(facts["description"])
    out.print(
        f"\nlimits: {', '.join(f'{name} {value}' for name, value in facts['limits'].items() if value is not None)}"
    )
    if facts["sandbox"] is not None:
        out.print(f"sandbox: {_said(facts['sandbox'])}")
    if facts["system_prompt"] is not None:
        out.print()
        print_message(out, Message("system", facts["system_prompt"]))
    for tool in facts["tools"]:
        out.print(f"\ntool {tool.name}", style="bold")
        out.print(tool.description)
        for line in parameter_lines(tool):
            out.print(line)
    if facts["scores"]:
        out.print()
    for score in facts["scores"]:
        weight = f", weight {score['weight']:g}" if score["kind"] == "reward" else ""
        out.print(f"{score['kind']} {score['name']}{weight}")
    for task in facts["tasks"]:
        level = f", level {task['level']}" if task["level"] else ""
        out.print(f"\ntask {task['id']}{level}", style="bold")
        for message in task["prompt"]:
            print_message(out, message)


def _said(sandbox: "SandboxSpec") -> str:
    """What is asked of a sandbox: what is not as by default, and its limits."""
    from msgspec.structs import asdict

    fields, usual = asdict(sandbox), asdict(type(sandbox)())
    special = {name: value for name, value in fields.items() if name != "limits" and value != usual[name]}
    if sandbox.files:
        special["files"] = ", ".join(sandbox.files)
    limits = {name: value for name, value in asdict(sandbox.limits).items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in (special | limits).items())


def describe(config: "EnvConfig", seed: int) -> dict[str, Any]:
    """What `moonmill envs show` shows, as plain data but for the prompts' messages."""
    from moonmill.envs import Taskset
    from moonmill.envs.adapters.verifiers.environment import VerifiersEnv
    from moonmill.envs.limits import check_sandbox
    from moonmill.envs.wrapper import innermost
    from moonmill.envs.wrappers import factory_of
    from moonmill.errors import ConfigError

    factory = factory_of(config)
    env = factory()
    inner = innermost(env)
    tasks, missing = [], None
    for split in _SPLITS:
        try:
            tasks.append(Taskset(factory, split, seed).task(0))
        except ConfigError as e:  # some have one of them alone
            missing = e
    if missing is not None and not tasks:
        raise missing
    return {
        "id": config.id,
        "description": inner.about() if isinstance(inner, VerifiersEnv) else _description(inner),
        "limits": {name: getattr(env, name) for name in ("max_turns", "max_tokens", "max_seconds")},
        "reward_bounds": env.reward_bounds,
        "system_prompt": env.system_prompt,
        "sandbox": check_sandbox(type(env), env.sandbox),
        "tools": env.tool_specs,
        "scores": [
            {"name": mark.method, "kind": mark.kind, "weight": mark.weight} for mark in env._moonmill_class.marks
        ],
        "tasks": [{"id": t.id, "level": t.level, "prompt": _opening(config.id, factory, t, seed)} for t in tasks],
    }


def _opening(env_id: str, factory: "Callable[[], MultiTurnEnv]", task: "Task", seed: int) -> "Sequence[Message]":
    """What the model is shown first, besides the system prompt: more than the task, where `reset` says more.

    The task alone, where a sandbox would have to be opened for that, or a program started.
    """
    from contextlib import closing

    from moonmill.blame import blaming
    from moonmill.envs import ForeignEnv
    from moonmill.envs.wrapper import innermost
    from moonmill.seeding import derive_seed

    env = factory()
    if env.sandbox is not None or isinstance(innermost(env), ForeignEnv):
        return task.messages()
    with closing(env), blaming(env_id, "reset"):
        messages: Sequence[Message]
        messages, _ = env.reset(seed=derive_seed(seed, task.split, 0), options={"task": task})
    is_said = messages and messages[0].role == "system" and messages[0].content == env.system_prompt
    return messages[1:] if is_said else messages


def _summary(env: "MultiTurnEnv") -> str:
    return _description(env).partition("\n")[0]


def _description(env: "MultiTurnEnv") -> str:
    """The class's own docstring: one that it inherits would speak of something else."""
    return inspect.cleandoc(type(env).__doc__ or "")
