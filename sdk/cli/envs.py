"""`moonmill envs`: what environments there are, what they look like, and playing them by hand."""

import inspect
import json
from typing import TYPE_CHECKING, Any

import click

from moonmill.cli.options import json_option
from moonmill.cli.play import play

if TYPE_CHECKING:
    from moonmill.envs import MultiTurnEnv

_SPLITS = ("train", "eval")


@click.group()
def envs() -> None:
    """List, show and play environments."""


envs.add_command(play)


@envs.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the registered environments."""
    from moonmill.cli.output import console, print_json, table
    from moonmill.errors import MoonmillError
    from moonmill.registry import list_envs, make

    rows = []
    for env_id in list_envs():
        try:
            rows.append({"id": env_id, "summary": _summary(make(env_id)), "error": None})
        except MoonmillError as e:
            rows.append({"id": env_id, "summary": "", "error": str(e)})
    if as_json:
        print_json(rows)
        return
    out = console()
    grid = table(out, "id", "")
    for row in rows:
        grid.add_row(row["id"], row["error"] or row["summary"], style="red" if row["error"] else None)
    out.print(grid)


@envs.command("show")
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
    out.print(f"\nlimits: {', '.join(f'{name} {value}' for name, value in facts['limits'].items())}")
    for tool in facts["tools"]:
        out.print(f"\ntool {tool['name']}", style="bold")
        out.print(tool["description"])
        for name, schema in tool["parameters"].get("properties", {}).items():
            out.print(f"  {name}{_optional(tool, name)}: {_schema_text(schema)}")
    for task in facts["tasks"]:
        level = f", level {task['level']}" if task["level"] else ""
        out.print(f"\ntask {task['id']}{level}", style="bold")
        for message in task["prompt"]:
            print_message(out, message)


def describe(env_id: str, seed: int) -> dict[str, Any]:
    """What `moonmill envs show` shows, as plain data but for the prompts' messages."""
    from functools import partial

    from moonmill.envs import Taskset
    from moonmill.registry import make

    factory = partial(make, env_id)
    env = factory()
    tasks = [Taskset(factory, split, seed).task(0) for split in _SPLITS]
    return {
        "id": env_id,
        "description": inspect.getdoc(type(env)) or "",
        "limits": {name: getattr(env, name) for name in ("max_turns", "max_tokens", "max_seconds")},
        "reward_bounds": env.reward_bounds,
        "tools": [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in env.tool_specs],
        "tasks": [{"id": t.id, "level": t.level, "prompt": t.messages()} for t in tasks],
    }


def _summary(env: "MultiTurnEnv") -> str:
    return (inspect.getdoc(type(env)) or "").partition("\n")[0]


def _optional(tool: dict[str, Any], name: str) -> str:
    return "" if name in tool["parameters"].get("required", ()) else " (optional)"


def _schema_text(schema: dict[str, Any]) -> str:
    """A parameter's JSON schema without its description, and the description."""
    kind = {key: value for key, value in schema.items() if key != "description"}
    text = kind["type"] if set(kind) == {"type"} else json.dumps(kind, ensure_ascii=False)
    return f"{text}, {schema['description']}" if schema.get("description") else str(text)
