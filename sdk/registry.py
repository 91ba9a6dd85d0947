"""Environments by name.

An id is `name-v0`, or the place of a class: `path/to/file.py:Class`, `package.module:Class`, or `library:name`, what
another library has under that name (`ADAPTERS`). Built-in environments and those of installed packages (entry-point
group `moonmill.envs`) are imported when they are made, not before.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from moonmill.blame import blaming, said_of
from moonmill.errors import ConfigError, EnvCodeError, RegistryError
from moonmill.modules import load_module

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
    "booking-v0": EnvSpec("booking-v0", "moonmill.envs.library.booking:Booking"),
    "calculator-v0": EnvSpec("calculator-v0", "moonmill.envs.library.calculator:Calculator"),
    "mastermind-v0": EnvSpec("mastermind-v0", "moonmill.envs.library.mastermind:Mastermind"),
    "math-v0": EnvSpec("math-v0", "moonmill.envs.library.math.env:Math"),
    "nim-v0": EnvSpec("nim-v0", "moonmill.envs.library.nim:Nim"),
    "python-code-v0": EnvSpec("python-code-v0", "moonmill.envs.library.python_code:PythonCode"),
    "search-v0": EnvSpec("search-v0", "moonmill.envs.library.search.env:Search"),
    "terminal-v0": EnvSpec("terminal-v0", "moonmill.envs.library.terminal.env:Terminal"),
}

ADAPTERS: dict[str, tuple[str, str]] = {
    "gymnasium": ("moonmill.envs.adapters.gymnasium:from_gymnasium", "id"),
    "reasoning-gym": ("moonmill.envs.adapters.reasoning_gym:ReasoningGym", "dataset"),
    "textarena": ("moonmill.envs.adapters.textarena:TextArena", "id"),
    "verifiers": ("moonmill.envs.adapters.verifiers:VerifiersEnv", "id"),
}
"""By the name of a library, as it stands before the colon: what makes an environment of one of its, and which argument
takes the library's own name for it."""


def register(id: str, entry_point: str | Callable[..., Any], **kwargs: Any) -> None:
    """Give an environment a name. Giving it again is no error, so that a notebook's cell can be run twice.

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
    there = _registered.get(id)
    if there is not None and _name(there.entry_point) != _name(entry_point):
        raise RegistryError(f"the environment id {id!r} is taken by {_name(there.entry_point)}: choose another")
    _registered[id] = EnvSpec(id, entry_point, kwargs)


def list_envs() -> tuple[EnvSpec, ...]:
    """Every environment that has a name, in their order."""
    _load_plugins()
    return tuple(spec for _, spec in sorted(_registered.items()))


def plugin_errors() -> dict[str, str]:
    """Plugins that could not be loaded, and why."""
    return dict(_load_plugins())


def spec(id: str) -> EnvSpec:
    """What is registered under `id`, or stands at the place it names.

    Raises:
        RegistryError: there is nothing.
    """
    if id not in _registered:
        if ":" in id:
            return _elsewhere(id)
        if id.endswith(".py"):
            there = ", ".join(envs_in(id)) or "no environment"
            raise RegistryError(f"{id} is a file, not an environment: name the class as well; it defines {there}")
        _load_plugins()
    if id not in _registered:
        near = difflib.get_close_matches(id, _registered, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(_registered))}."
        broken = "".join(f" The plugin {name} could not be loaded: {why}." for name, why in plugin_errors().items())
        raise RegistryError(
            f"there is no environment {id!r}: {hint} An environment of your own is named by its place, as in "
            f"`my_env.py:MyEnv`.{broken}"
        )
    return _registered[id]


def _elsewhere(id: str) -> EnvSpec:
    """What an id with a colon names: another library's environment, or the place of a class."""
    library, _, name = id.partition(":")
    if library not in ADAPTERS:
        return EnvSpec(id, id)
    entry_point, argument = ADAPTERS[library]
    if not name:
        raise RegistryError(f"{id!r} names no environment: write {library}:NAME")
    return EnvSpec(id, entry_point, {argument: name})


def envs_in(file: str) -> tuple[str, ...]:
    """The ids, `file.py:Class`, of the environments that a file defines, in its order.

    Raises:
        RegistryError: there is no such file, or it cannot be imported.
    """
    module = load_module(file, "environment")
    classes = [(name, found) for name, found in vars(module).items() if inspect.isclass(found)]
    return tuple(
        f"{file}:{name}"
        for name, found in classes
        if found.__module__ == module.__name__ and hasattr(found, "tool_specs") and not inspect.isabstract(found)
    )


def make(id: str, /, **kwargs: Any) -> "MultiTurnEnv":
    """A new environment: one episode.

    Args:
        id: a registered id, or a class's place.
        kwargs: arguments of its constructor; they win over the registered ones.

    Raises:
        RegistryError: there is no such environment.
        ConfigError: its constructor does not take these arguments.
        EnvCodeError: its constructor raised, or it is no environment.
    """
    found = spec(id)
    entry_point = found.entry_point
    factory = resolve(entry_point) if isinstance(entry_point, str) else entry_point
    arguments = {**found.kwargs, **kwargs}
    said = found.kwargs if id.partition(":")[0] in ADAPTERS else {}
    _check_arguments(id, factory, arguments, said=said, given=kwargs)
    with blaming(id, "its constructor"):
        env: MultiTurnEnv = factory(**arguments)
    if not hasattr(env, "tool_specs"):  # Not isinstance: it would import environments into what only lists them.
        raise EnvCodeError(f"{id} is no environment, but makes {env!r:.200}")
    return env


def _check_arguments(
    id: str,
    factory: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    said: Mapping[str, Any],
    given: Mapping[str, Any],
) -> None:
    """Refuse what a constructor does not take, and what is `said` by the id alone."""
    signature = _signature(factory)
    try:
        if twice := said.keys() & given.keys():
            raise TypeError(f"{', '.join(twice)} is said by the environment's id")
        signature.bind(**arguments)
    except TypeError as e:
        accepted = ", ".join(name for name in signature.parameters if name not in said) or "none"
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
def resolve(place: str, what: str = "environment class") -> Callable[..., Any]:
    """What stands at `file.py:name` or `package.module:name`.

    Args:
        place: where.
        what: is looked for, in words.

    Raises:
        RegistryError: there is no such file or module, it cannot be imported, or has nothing of that name to call.
    """
    module_name, _, attribute = place.rpartition(":")
    module = load_module(module_name, "script" if what == "function" else "environment")
    found = getattr(module, attribute, None)
    if not callable(found):
        of_kind, kind = (inspect.isfunction, "function") if what == "function" else (inspect.isclass, "class")
        names = [n for n, v in vars(module).items() if of_kind(v) and v.__module__ == module.__name__]
        raise RegistryError(
            f"{module_name or place} has no {what} {attribute!r}; it defines: {', '.join(names) or f'no {kind}'}"
        )
    result: Callable[..., Any] = found
    return result


def _name(entry_point: str | Callable[..., Any]) -> str:
    if isinstance(entry_point, str):
        return entry_point
    return f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', repr(entry_point))}"


@cache
def _load_plugins() -> dict[str, str]:
    """Import the plugins, once; a plugin's module registers its environments, or the function it names does.

    Returns:
        Why a plugin could not be loaded, by its name.
    """
    broken: dict[str, str] = {}
    from importlib.metadata import entry_points  # half of what `import moonmill` would cost

    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
            if callable(loaded):
                loaded()
        except (Exception, SystemExit) as e:
            broken[point.name] = said_of(e)
    return broken
