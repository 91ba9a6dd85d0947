"""Environments by name.

An id is `name-v0`, or the place of a class: `path/to/file.py:Class`, `package.module:Class`. Built-in environments and
those of installed packages (entry-point group `moonmill.envs`) are imported when they are made, not before.
"""

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from moonmill.errors import ConfigError, RegistryError

if TYPE_CHECKING:
    from moonmill.envs import MultiTurnEnv

ENTRY_POINT_GROUP = "moonmill.envs"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*-v\d+")


class EnvSpec(Struct, frozen=True):
    """A registered environment."""

    id: str
    entry_point: str | Callable[..., Any]
    """A class, a function that returns an environment, or where to find one: `package.module:Class`."""
    kwargs: dict[str, Any] = {}
    """Arguments of the constructor, unless `make` is given others."""


_registered: dict[str, EnvSpec] = {
    "calculator-v0": EnvSpec("calculator-v0", "moonmill.envs.library.calculator:Calculator"),
}


def register(id: str, entry_point: str | Callable[..., Any], **kwargs: Any) -> None:
    """Give an environment a name.

    Args:
        id: `name-v0`; the number grows when results can no longer be compared.
        entry_point: the class, or `package.module:Class`.
        kwargs: arguments of its constructor.

    Raises:
        RegistryError: the id has another form, or is taken by another environment.
    """
    if not _ID.fullmatch(id):
        raise RegistryError(
            f"the environment id {id!r} should look like `name-v0`: letters, digits, `-`, `_`, a version"
        )
    spec = EnvSpec(id, entry_point, kwargs)
    if _registered.get(id, spec) != spec:
        raise RegistryError(f"the environment id {id!r} is taken by {_registered[id].entry_point}: choose another")
    _registered[id] = spec


def list_envs() -> tuple[EnvSpec, ...]:
    """Every environment that has a name, in their order."""
    for name in sorted(_plugins()):
        _load_plugin(name)
    return tuple(_registered[id] for id in sorted(_registered))


def plugin_errors() -> dict[str, str]:
    """Plugins that could not be loaded, and why."""
    return dict(_broken)


def spec(id: str) -> EnvSpec:
    """What is registered under `id`, or stands at the place it names.

    Raises:
        RegistryError: there is nothing.
    """
    if id not in _registered:
        if ":" in id:
            return EnvSpec(id, id)
        list_envs()
    if id not in _registered:
        near = difflib.get_close_matches(id, _registered, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(_registered))}."
        broken = "".join(f" The plugin {name} could not be loaded: {why}." for name, why in _broken.items())
        raise RegistryError(
            f"there is no environment {id!r}: {hint} An environment of your own is named by its place, as in "
            f"`my_env.py:MyEnv`.{broken}"
        )
    return _registered[id]


def make(id: str, **kwargs: Any) -> "MultiTurnEnv":
    """A new environment: one episode.

    Args:
        id: a registered id, or a class's place.
        kwargs: arguments of its constructor; they win over the registered ones.

    Raises:
        RegistryError: there is no such environment.
        ConfigError: its constructor does not take these arguments.
    """
    found = spec(id)
    entry_point = found.entry_point
    factory = _resolve(entry_point) if isinstance(entry_point, str) else entry_point
    arguments = {**found.kwargs, **kwargs}
    _check_arguments(id, factory, arguments)
    env: MultiTurnEnv = factory(**arguments)
    return env


def _check_arguments(id: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    signature = _signature(factory)
    try:
        signature.bind(**arguments)
    except TypeError as e:
        accepted = ", ".join(signature.parameters) or "none"
        raise ConfigError(f"env.args of {id}: {e}; it takes: {accepted}") from e


@cache
def _signature(factory: Callable[..., Any]) -> inspect.Signature:
    # Of a class without a constructor of its own, `__new__` would speak for it and take anything.
    if inspect.isclass(factory) and factory.__init__ is object.__init__:
        return inspect.Signature()
    if inspect.isclass(factory):
        parameters = list(inspect.signature(factory.__init__).parameters.values())[1:]
        return inspect.Signature(parameters)
    return inspect.signature(factory)


@cache
def _resolve(place: str) -> Callable[..., Any]:
    module_name, _, attribute = place.rpartition(":")
    module = _load_file(Path(module_name)) if module_name.endswith(".py") else _load_module(module_name)
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [n for n, v in vars(module).items() if inspect.isclass(v) and v.__module__ == module.__name__]
        raise RegistryError(
            f"{module_name} has no environment class {attribute!r}; it defines: {', '.join(names) or 'no class'}"
        )
    result: Callable[..., Any] = found
    return result


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise RegistryError(f"the environment's module {name!r} cannot be imported: {e}") from e


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RegistryError(f"there is no environment file {path} (looked for at {path.resolve()})")
    name = f"moonmill_env_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # Type hints are looked up there while the class is made.
    try:
        module_spec.loader.exec_module(module)
    except RegistryError:
        raise
    except Exception as e:
        del sys.modules[name]
        raise RegistryError(f"the environment file {path} cannot be imported: {type(e).__name__}: {e}") from e
    return module


_broken: dict[str, str] = {}


@cache
def _plugins() -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def _load_plugin(name: str) -> None:
    """Import a plugin, which registers its environments: the module itself does, or the function that is named."""
    try:
        loaded = _plugins()[name].load()
        if callable(loaded):
            loaded()
    except Exception as e:
        _broken[name] = f"{type(e).__name__}: {e}"
