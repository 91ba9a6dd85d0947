"""`moonmill envs new`: a package with an environment to begin with, from the files in `template/`.

A template is a file as it will be, but for `$name` and its like (`string.Template`), and its own name in `_FILES`.
"""

import keyword
import re
import shlex
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from string import Template

import click
from msgspec import Struct
from msgspec.structs import asdict

from moonmill.cli.results import Command
from moonmill.errors import ConfigError, MoonmillError

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 50
_TAKEN = frozenset({"moonmill", "test", "tests", "env", "config"})
"""Besides the standard library's: modules that would get in somebody's way."""
_FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "config.yaml.txt": "config.yaml",
    "environment.py.txt": "src/{module}/__init__.py",
    "test_environment.py.txt": "tests/test_{module}.py",
}


class _Names(Struct, frozen=True):
    name: str
    """Of the distribution and the folder: `unit-shop`."""
    module: str
    """`unit_shop`."""
    class_name: str
    """`UnitShop`."""
    env_id: str
    """`unit-shop-v0`."""


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option(
    "--dir",
    "parent",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where the package's folder is made; by default here.",
)
def new(name: str, parent: Path) -> None:
    """Begin an environment of your own: a small package that works, with tests.

    NAME is of small letters, digits and dashes. Nothing is ever overwritten.
    """
    from moonmill.cli.output import console
    from moonmill.registry import list_envs

    names = names_of(name)
    if names.env_id in {spec.id for spec in list_envs()}:
        raise ConfigError(f"{name}: there is an environment {names.env_id} already: choose another name")
    folder = parent / names.name
    write(names, folder)
    out = console()
    for made in _FILES.values():
        out.print(f"made {folder / made.format(module=names.module)}")
    package = shlex.quote(f"{folder if folder.is_absolute() else f'./{folder}'}[dev]")
    out.print(
        f"\nnext:\n  pip install -e {package}\n  python -m pytest {shlex.quote(str(folder))}\n"
        f"  moonmill envs check {names.env_id}\n  moonmill envs play {names.env_id}"
    )


def names_of(name: str) -> _Names:
    """What an environment of that name is called in each place.

    Raises:
        ConfigError: it cannot be called so, with a name that would do.
    """
    module = name.replace("-", "_")
    plain = re.sub(r"-v\d+$", "", re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()))
    better = re.sub(r"^[^a-z]+", "", plain)[:_LONGEST].strip("-") or "my-env"
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        why = (
            f"a name has small letters, digits and single dashes, begins with a letter and is no longer than {_LONGEST}"
        )
    elif re.search(r"-v\d+$", name):
        why = "the version is added by itself"
    elif keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _TAKEN:
        why, better = f"`import {module}` means something else in Python", f"{better}-env"
    else:
        return _Names(name, module, "".join(part.capitalize() for part in name.split("-")), f"{name}-v0")
    if better.replace("-", "_") in sys.stdlib_module_names | _TAKEN or keyword.iskeyword(better):
        better = f"{better}-env"
    raise ConfigError(f"{name!r:.100} cannot be the name of an environment: {why}; try {better}")


def write(names: _Names, folder: Path) -> None:
    """Make the package; on a failure nothing of it is left.

    Raises:
        ConfigError: there is something of that name already.
        MoonmillError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError as e:
        raise ConfigError(f"{folder} is there already, and nothing is overwritten: choose another name") from e
    except OSError as e:
        raise MoonmillError(f"{folder} cannot be made: {e.strerror}") from e
    try:
        for template, made in _FILES.items():
            path = folder / made.format(module=names.module)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = files("moonmill.cli").joinpath("template", template).read_text(encoding="utf-8")
            path.write_text(Template(text).substitute(asdict(names)), encoding="utf-8")
    except OSError as e:
        shutil.rmtree(folder, ignore_errors=True)
        raise MoonmillError(f"{folder} cannot be written: {e.strerror}") from e
