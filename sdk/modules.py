"""Modules of authors: by name or file, with errors that say what could not be imported, and where."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from moonmill.blame import error_of, place_of
from moonmill.errors import MissingExtraError, RegistryError, ToolDefinitionError


def load_module(name: str, of: str) -> ModuleType:
    """The module of that name, or of that file where the name ends with `.py`.

    Args:
        name: of the module or file.
        of: what it is one of, in words.

    Raises:
        RegistryError: there is none, or it cannot be imported.
    """
    if name.endswith(".py"):
        # os.path, unlike Path, takes a name that no file can have for one that does not exist.
        if not os.path.isfile(name):
            raise RegistryError(f"there is no {of} file {os.path.abspath(name):.300}")
        path = Path(name).resolve()
        with _importing(f"the {of} file {path}"):
            return _load_file(path)
    if not name.startswith("moonmill."):  # ours stand beside nothing of the author's
        _import_from(os.getcwd())
    with _importing(f"the {of}'s module {name!r}"):
        return importlib.import_module(name)


@cache
def _load_file(path: Path) -> ModuleType:
    """The module of a file. It is run once, however many environments of it are made. What it raises is raised here."""
    name = f"moonmill_env_{path.stem}_{abs(hash(path)):x}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    _import_from(str(path.parent))
    sys.modules[name] = module  # Type hints are looked up there while the class is made.
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_from(folder: str) -> None:
    """Let an environment import the modules beside it. What is installed comes first: an `attrs.py` takes no place."""
    if folder not in sys.path:
        sys.path.append(folder)


@contextmanager
def _importing(what: str) -> Iterator[None]:
    """An author's module may raise anything: say what, and where."""
    try:
        yield
    except MissingExtraError:
        raise
    except (Exception, SystemExit) as e:
        says_where = isinstance(e, SyntaxError) or (isinstance(e, ToolDefinitionError) and e.place)
        place = place_of(e)
        # Where the module itself is not there, nobody's line is to blame.
        where = "" if says_where or place.startswith("<frozen") else f" ({place})"
        raise RegistryError(f"{what} cannot be imported: {type(e).__name__}: {error_of(e)}{where}") from e
