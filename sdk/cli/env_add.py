"""`moonmill envs add`: an environment of verifiers, with verifiers beside it in a Python environment of its own."""

import os
import sys
from pathlib import Path

import click

from moonmill.cli.options import args_option, json_option
from moonmill.cli.results import Command


@click.command("add", cls=Command)
@click.argument("env_id", metavar="verifiers:ID")
@click.option(
    "--from",
    "packages",
    multiple=True,
    metavar="PATH_OR_PACKAGE",
    help="Where it is: a folder, a wheel, or a requirement for pip. May be repeated. Not needed for those that "
    "verifiers brings.",
)
@click.option("--version", default="0.4.0", show_default=True, help="Of verifiers: 0.4.0, or 0.3.1 for its first API.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The Python environment's folder, by default one in the user's cache. Several may share one.",
)
@click.option(
    "--python", default=sys.executable, help="The interpreter to make it with; by default the one that runs this."
)
@click.option("--force", is_flag=True, help="Make the Python environment anew.")
@args_option
@json_option
def add(
    env_id: str,
    packages: tuple[str, ...],
    version: str,
    folder: Path | None,
    python: str,
    force: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add an environment of verifiers.

    verifiers and the environment's package are installed apart from Moonmill, in a minute or two; then it is tried.
    Where there is such a Python environment already, it is brought up to date.
    """
    import shutil

    from moonmill import plain_yaml
    from moonmill.cli.output import console, print_json
    from moonmill.cli.telling import telling
    from moonmill.config_io import make_env_config
    from moonmill.envs.adapters.verifiers import added
    from moonmill.errors import ConfigError

    library, _, name = env_id.partition(":")
    if library != "verifiers" or not name:
        raise ConfigError(f"{env_id!r} cannot be added: write verifiers:ID, the ID as verifiers knows it")
    if version not in added.VERSIONS:
        raise ConfigError(f"--version {version}: this works with {' and '.join(added.VERSIONS)} of verifiers")
    for package in packages:
        _require_there(package)
    args = make_env_config(env_id, overrides).args
    place = (folder or added.folder_of(name)).absolute()
    with telling() as (say, detail):
        found = added.add(
            name,
            packages,
            args,
            version=version,
            folder=place,
            python=shutil.which(python) or python,
            anew=force,
            say=say,
            detail=detail,
        )
    if as_json:
        print_json(found)
        return
    out = console()
    out.print(f"{env_id} is added: API {found.added.api} of verifiers {found.added.version}, in {place}")
    for split, task in found.splits.items():
        out.print(f"{split}: the first task is {task}")
    env = {"id": env_id, "args": args} if args else {"id": env_id}
    out.print(f"in a config:\n{plain_yaml.dump({'env': env})}", end="")


def _require_there(package: str) -> None:
    """Refuse what is a path and leads nowhere, before pip would, and before anything is made."""
    from moonmill.errors import ConfigError

    is_path = "/" in package or package.startswith(".") or package.endswith((".whl", ".tar.gz"))
    if is_path and "://" not in package and not os.path.exists(package):
        raise ConfigError(f"--from {package}: there is no such folder or file ({os.path.abspath(package)})")
