"""`moonmill envs`: what environments there are, what they look like, and playing them by hand."""

import inspect
import json
from typing import TYPE_CHECKING, Any

import click

from moonmill.cli.options import json_option
from moonmill.cli.play import play
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from moonmill.envs import MultiTurnEnv

_SPLITS = ("train", "eval")


@click.group()
def envs() -> None:
    """List, show and play environments."""


envs.add_command(play)


@envs.command("list", cls=Command)
@json_option
def list_all(as_json: bool) -> None:
    """List the registered environments."""
    from moonmill.cli.output import console, print_json, table
    from moonmill.errors import MoonmillError
    from moonmill.registry import list_envs, make, plugin_errors

    rows = []
    for spec in list_envs():
        try:
            rows.append({"id": spec.id, "summary": _summary(make(spec.id)), "error": None})
        except MoonmillError as e:
            rows.append({"id": spec.id, "summary": "", "error": str(e)})
    for plugin, why in plugin_errors().items():
        click.echo(f"warning: the plugin {plugin} could not be loaded: {why}", err=True)
    if as_json:
        print_json(rows)
        return
    out = console()
    grid = table(out, "id", "")
    for row in rows:
        grid.add_row(row["id"], row["error"] or row["summary"], style="red" if row["error"] else None)
    out.print(grid)


@envs.command("show", cls=Command)
@click.argument("env_id", metavar="ID")
@click.option("--seed", type=int, default=0, show_default=True, help="Which tasks to show.")
@json_option
def show(env_id: str, seed: int, as_json: bool) -> None:
    """Show an environment's tools, limits and first tasks.

    ID is a registered id, path/to/file.py:Class or package.module:Class.
    """
    from moonmill.cli.output import console, print_json
    from moonmill.cli.transcripts import print_message

    facts = describe(env_id, seed)
    if as_json:
        print_json(facts)
        return
    out = console()
    out.print(facts["id"], style="bold")
    out.print(facts["description"])
    out.print(
        f"\nlimits: {', '.join(f'{name} {value}' for name, value in facts['limits'].items() if value is not None)}"
    )
    for tool in facts["tools"]:
        out.print(f"\ntool {tool['name']}", style="bold")
        out.print(tool["description"])
        for name, schema in tool["parameters"].get("properties", {}).items():
            out.print(f"  {name}{_optional(tool, name)}: {_schema_text(schema)}")
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


def describe(env_id: str, seed: int) -> dict[str, Any]:
    """What `moonmill envs show` shows, as plain data but for the prompts' messages."""
    from functools import partial

    from moonmill.envs import Taskset
    from moonmill.envs.marks import collect_marks
    from moonmill.registry import make

    factory = partial(make, env_id)
    env = factory()
    tasks = [Taskset(factory, split, seed).task(0) for split in _SPLITS]
    return {
        "id": env_id,
        "description": _description(env),
        "limits": {name: getattr(env, name) for name in ("max_turns", "max_tokens", "max_seconds")},
        "reward_bounds": env.reward_bounds,
        "tools": [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in env.tool_specs],
        "scores": [
            {"name": mark.method, "kind": mark.kind, "weight": mark.weight} for mark in collect_marks(type(env))
        ],
        "tasks": [{"id": t.id, "level": t.level, "prompt": t.messages()} for t in tasks],
    }


def _summary(env: "MultiTurnEnv") -> str:
    return _description(env).partition("\n")[0]


def _description(env: "MultiTurnEnv") -> str:
    """The class's own docstring: one that it inherits would speak of something else."""
    return inspect.cleandoc(type(env).__doc__ or "")


def _optional(tool: dict[str, Any], name: str) -> str:
    return "" if name in tool["parameters"].get("required", ()) else " (optional)"


def _schema_text(schema: dict[str, Any]) -> str:
    """A parameter's JSON schema without its description, and the description."""
    kind = {key: value for key, value in schema.items() if key != "description"}
    text = kind["type"] if set(kind) == {"type"} else json.dumps(kind, ensure_ascii=False)
    return f"{text}, {schema['description']}" if schema.get("description") else str(text)
