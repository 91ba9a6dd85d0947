"""Providers by name, imported when they are asked for."""

import difflib
import importlib
import os
import sys
from collections.abc import Mapping

from moonmill.blame import is_interruption, text_of
from moonmill.errors import ConfigError
from moonmill.sandboxes.sandbox import SandboxProvider

UNSAFE = "unsafe-subprocess"
"""Keeps nothing in."""
PROVIDERS: Mapping[str, str] = {
    "local": "moonmill.sandboxes.local:LocalProvider",
    "docker": "moonmill.sandboxes.docker_provider:DockerProvider",
    UNSAFE: "moonmill.sandboxes.unsafe:UnsafeSubprocessProvider",
}

_METHODS = ("__aenter__", "__aexit__", "enforces", "require", "open")


def check_name(name: str) -> str:
    """Where the provider of a name is found, `package.module:factory`. Nothing is imported.

    Raises:
        ConfigError: there is none of that name.
    """
    place = PROVIDERS.get(name, name)
    if ":" not in place:
        near = difflib.get_close_matches(name, PROVIDERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PROVIDERS)}."
        raise ConfigError(
            f"sandbox.provider: there is no provider {name!r:.100}: {hint} One of your own is named by its place, "
            "`package.module:factory`"
        )
    return place


def make_provider(name: str) -> SandboxProvider:
    """The provider that a config names: one of ours, or `package.module:factory`.

    Raises:
        ConfigError: there is none of that name, or it cannot be made.
    """
    module, _, factory = check_name(name).rpartition(":")
    if name not in PROVIDERS and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as for an environment's module
    try:
        made: SandboxProvider = getattr(importlib.import_module(module), factory)()
        missing = [what for what in _METHODS if not callable(getattr(made, what, None))]
        missing += [] if isinstance(getattr(made, "name", None), str) else ["name"]
    except BaseException as e:
        if is_interruption(e):
            raise
        said = f"{type(e).__name__}: {text_of(e)}".removesuffix(": ")
        raise ConfigError(f"sandbox.provider: {name} cannot be had: {said}") from e
    if missing:
        raise ConfigError(f"sandbox.provider: {name} makes a {type(made).__name__}, which has no {', '.join(missing)}")
    return made
